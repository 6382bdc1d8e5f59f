#include "rollout/engine/stop_matcher.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

// The first length at which a stop string is in the decoded text; -1: never.
int64_t first_stop(const StopMatcher& matcher, const std::vector<TokenId>& ids) {
  for (size_t count = 1; count <= ids.size(); ++count)
    if (matcher.completes(std::span(ids).first(count))) return static_cast<int64_t>(count);
  return -1;
}

TEST(StopMatcher, FindsAStopStringInsideOneTokenAndAcrossSeveral) {
  FakeTokenizer tokenizer({"a", "b", "<", "/", "end", ">", "x</end>y", "", "\xC3", "\xA9"});
  StopMatcher matcher(tokenizer, {"</end>"}, 10);
  EXPECT_EQ(first_stop(matcher, {0, 1, 2, 3, 4, 5, 0}), 6);
  EXPECT_EQ(first_stop(matcher, {0, 6, 0}), 2);
  EXPECT_EQ(first_stop(matcher, {2, 3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 4, 5}), 19);
  EXPECT_EQ(first_stop(matcher, {2, 3, 4, 0, 5}), -1);
}

TEST(StopMatcher, FindsAStopStringThatEndsInHalfACharacterPerToken) {
  FakeTokenizer tokenizer({"caf", "\xC3", "\xA9", "!"});
  StopMatcher matcher(tokenizer, {"caf\xC3\xA9"}, 4);
  EXPECT_EQ(first_stop(matcher, {3, 0, 1, 2, 3}), 4);
}

TEST(StopMatcher, AgreesWithDecodingEverything) {
  FakeTokenizer tokenizer({"a", "b", "ab", "ba", "aa ", " ", "", "\n"});
  const std::vector<std::string> stops = {"abba", "b\na", "a  b", ""};
  StopMatcher matcher(tokenizer, stops, 8);
  Rng rng(5);
  int found = 0;
  for (int i = 0; i < 500; ++i) {
    std::vector<TokenId> ids(30);
    for (TokenId& id : ids) id = static_cast<TokenId>(rng.below(8));
    int64_t expected = -1;
    for (size_t count = 1; count <= ids.size() && expected < 0; ++count) {
      std::string text = tokenizer.decode(std::span(ids).first(count), false);
      for (const std::string& stop : stops)
        if (!stop.empty() && text.find(stop) != std::string::npos)
          expected = static_cast<int64_t>(count);
    }
    found += expected > 0;
    ASSERT_EQ(first_stop(matcher, ids), expected);
  }
  EXPECT_GT(found, 100);
}

// A vocabulary with byte fallback: a newline behind rare characters is one byte of a run.
class ByteFallback : public testing::Test {
 protected:
  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K");

  // By decoding everything each time, with special tokens and without.
  int64_t expected(const std::vector<std::string>& stops, const std::vector<TokenId>& ids) const {
    for (size_t count = 1; count <= ids.size(); ++count) {
      for (const bool keep : {false, true}) {
        const std::string text = tokenizer_->decode(std::span(ids).first(count), keep);
        for (const std::string& stop : stops)
          if (text.find(stop) != std::string::npos) return static_cast<int64_t>(count);
      }
    }
    return -1;
  }
};

TEST_F(ByteFallback, AStopStringBehindRareCharactersIsFound) {
  const std::vector<TokenId> ids = tokenizer_->encode("\u9F98\u9F98\u9F98\n");
  ASSERT_GE(ids.size(), 10u) << "three bytes a character";
  const StopMatcher matcher(*tokenizer_, {"\n"}, tokenizer_->vocab_size());
  EXPECT_EQ(first_stop(matcher, ids), std::ssize(ids));
}

TEST_F(ByteFallback, AStopStringMayNameASpecialTokenOrStandAroundOne) {
  const TokenId eos = tokenizer_->eos();
  ASSERT_GE(eos, 0);
  std::vector<TokenId> ids = tokenizer_->encode("once");
  ids.push_back(eos);
  const StopMatcher named(*tokenizer_, {"</s>"}, tokenizer_->vocab_size());
  EXPECT_EQ(first_stop(named, ids), std::ssize(ids));
  const std::vector<TokenId> around = {tokenizer_->id_of("o"), eos, tokenizer_->id_of("n")};
  const StopMatcher across(*tokenizer_, {"on"}, tokenizer_->vocab_size());
  EXPECT_EQ(first_stop(across, around), 3);
}

TEST_F(ByteFallback, AgreesWithDecodingEverything) {
  const auto id_of = [&](const char* token) { return tokenizer_->id_of(token); };
  // Bytes of a CJK character and of a newline, words, special tokens.
  const std::vector<TokenId> alphabet = {id_of("<0xE9>"), id_of("<0xBE>"),  id_of("<0x98>"),
                                         id_of("<0x0A>"), id_of("a"),       id_of("\u2581the"),
                                         id_of("\u2581"), tokenizer_->eos()};
  for (TokenId id : alphabet) ASSERT_GE(id, 0);
  const std::vector<std::string> stops = {"\n", "a the", "</s>a", "\u9F98a"};
  Rng rng(7);
  int found = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<TokenId> ids(40);
    // Mostly whole characters, or nothing would ever be valid.
    for (size_t at = 0; at < ids.size();) {
      if (rng.chance(0.7) && at + 3 <= ids.size()) {
        for (size_t byte = 0; byte < 3; ++byte) ids[at++] = alphabet[byte];
      } else {
        ids[at++] = alphabet[static_cast<size_t>(rng.below(std::ssize(alphabet)))];
      }
    }
    // One at a time: with all of them something stops every answer at once.
    const std::string& stop = stops[static_cast<size_t>(i) % stops.size()];
    const StopMatcher matcher(*tokenizer_, {stop}, tokenizer_->vocab_size());
    const int64_t at = expected({stop}, ids);
    found += at > 10;
    ASSERT_EQ(first_stop(matcher, ids), at) << stop;
  }
  EXPECT_GT(found, 30);
}

}  // namespace
}  // namespace tailrace
