#include "rollout/engine/stop_matcher.h"

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

}  // namespace
}  // namespace tailrace
