#include "rollout/engine/stop_tokens.h"

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

TEST(StopTokens, AreThoseOfTheTokenizerAndOfTheConfigEachOnce) {
  const FakeTokenizer no_eos({"a", "b"}), eos({"a", "b"}, /*eos=*/6);
  const chat::PromptFormat without(no_eos), with(eos);
  ModelConfig model;
  EXPECT_TRUE(stop_tokens(model, without).empty());
  EXPECT_EQ(stop_tokens(model, with), std::vector<TokenId>{6});
  model.eos_tokens = {9, 6, 2};
  EXPECT_EQ(stop_tokens(model, without), (std::vector<TokenId>{2, 6, 9}));
  EXPECT_EQ(stop_tokens(model, with), (std::vector<TokenId>{2, 6, 9}));
}

// A base model ends its text by one token, and its chat template a turn by another.
TEST(StopTokens, HaveTheEndOfATurn) {
  const auto tokenizer = text::load_tokenizer(std::filesystem::path(TAILRACE_SOURCE_DIR) /
                                              "tests/data/tokenizers/minimind");
  const TokenId end = tokenizer->id_of("<|im_end|>");
  ASSERT_GE(end, 0);
  ModelConfig model;
  model.eos_tokens = {0};
  const chat::PromptFormat format(
      *tokenizer,
      chat::ChatTemplate::parse("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
                                "t"),
      {});
  const std::vector<TokenId> stops = stop_tokens(model, format);
  EXPECT_NE(std::ranges::find(stops, end), stops.end());
}

}  // namespace
}  // namespace tailrace
