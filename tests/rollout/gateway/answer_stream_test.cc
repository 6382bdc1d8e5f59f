// What a client sees of an answer while it comes: pieces that are the whole, whatever was sampled.
#include "rollout/gateway/answer_stream.h"

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "tests/rollout/gateway/conversation.h"

namespace tailrace::gateway {
namespace {

std::vector<GeneratedToken> tokens_of(const std::string& text) {
  std::vector<GeneratedToken> tokens;
  for (const TokenId id : tokenizer().encode(text)) tokens.push_back({.id = id});
  return tokens;
}

// All pieces of an answer that comes token by token, as one; and how many there were.
struct Shown {
  Delta sum;
  int pieces = 0;
};
Shown shown(const std::vector<GeneratedToken>& tokens, const AnswerStreamOptions& options) {
  AnswerStream stream(tokenizer(), options);
  Shown shown;
  const auto add = [&](const Delta& delta) {
    ++shown.pieces;
    EXPECT_EQ(delta.is_first, shown.pieces == 1);
    EXPECT_EQ(delta.first_call, std::ssize(shown.sum.calls));
    shown.sum.text += delta.text;
    shown.sum.content += delta.content;
    shown.sum.reasoning += delta.reasoning;
    for (const auto& call : delta.calls) shown.sum.calls.push_back(call);
    for (const auto& token : delta.tokens) shown.sum.tokens.push_back(token);
  };
  for (size_t count = 1; count < tokens.size(); ++count)
    if (const auto delta = stream.more(std::span(tokens).first(count))) add(*delta);
  Choice whole;
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  whole.text = up_to_stop(tokenizer().decode(ids, options.keeps_special), options.stops);
  whole.answer = chat::parse_answer(whole.text, options.form, options.salt);
  whole.tokens = tokens;
  add(stream.rest(whole));
  EXPECT_EQ(shown.sum.text, whole.text);
  if (options.is_chat) {
    EXPECT_EQ(shown.sum.content, whole.answer.content);
    EXPECT_EQ(shown.sum.reasoning, whole.answer.reasoning);
    EXPECT_EQ(shown.sum.calls, whole.answer.calls);
  }
  if (options.wants_tokens) {
    EXPECT_EQ(shown.sum.tokens.size(), tokens.size());
  }
  return shown;
}

TEST(AnswerStreams, ShowPiecesThatAreTheWhole) {
  EXPECT_GT(shown(tokens_of("One two three, four."), {}).pieces, 3);
  (void)shown(tokens_of("Größe: 漢字 😀 done"), {.wants_tokens = true});
  (void)shown(tokens_of("<think>\nhm\n</think>\n\nyes"), {.form = {.thinks = true}});
  const Shown calls =
      shown(tokens_of("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
            {.keeps_special = true, .form = {.tools = chat::ToolForm::kHermes}});
  EXPECT_EQ(calls.sum.calls.size(), 1);
}

TEST(AnswerStreams, NeverShowAPartOfAStopString) {
  const std::vector<std::string> stops = {"\nEND", "###"};
  const Shown whole = shown(tokens_of("a # b ## c\nEN d ### e"), {.stops = stops});
  EXPECT_EQ(whole.sum.content, "a # b ## c\nEN d ");
  (void)shown(tokens_of("漢字###"), {.is_chat = false, .stops = stops});
}

TEST(AnswerStreams, OfAnyTokens) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    std::vector<GeneratedToken> tokens;
    for (int64_t n = 1 + rng.below(40); n > 0; --n)
      tokens.push_back({.id = static_cast<TokenId>(rng.below(tokenizer().vocab_size()))});
    (void)shown(tokens, {.is_chat = rng.chance(0.5),
                         .keeps_special = rng.chance(0.5),
                         .wants_tokens = true,
                         .form = {.tools = chat::ToolForm::kHermes, .thinks = rng.chance(0.5)}});
  }
}

}  // namespace
}  // namespace tailrace::gateway
