#include "reward/verifiers/deadlines.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// RollPacker: min(max(2 s, 1.5 x anchor), 30 s).
TEST(Deadlines, AreOneAndAHalfTimesTheAnchorBetweenTwoAndThirtySeconds) {
  const auto deadline = [](std::optional<Time> anchor) { return deadline_of(anchor, {}); };
  EXPECT_EQ(deadline(std::nullopt), 30s);
  EXPECT_EQ(deadline(0ms), 2s);
  EXPECT_EQ(deadline(1333ms), 2s);
  EXPECT_EQ(deadline(1334ms), 2001ms);
  EXPECT_EQ(deadline(4s), 6s);
  EXPECT_EQ(deadline(20s), 30s);
  EXPECT_EQ(deadline(25s), 30s);
}

TEST(Deadlines, TheAnchorIsTheLongestTimeOfATest) {
  AdaptiveDeadlines deadlines({}, 10);
  EXPECT_EQ(deadlines.of("a"), 30s);
  deadlines.learn("a", 4s);
  EXPECT_EQ(deadlines.of("a"), 6s);
  deadlines.learn("a", 1s);
  EXPECT_EQ(deadlines.of("a"), 6s);
  deadlines.learn("a", 6s);
  EXPECT_EQ(deadlines.of("a"), 9s);
  EXPECT_EQ(deadlines.of("b"), 30s) << "of another test";
}

TEST(Deadlines, TheOldestTestsAreForgotten) {
  AdaptiveDeadlines deadlines({}, 2);
  deadlines.learn("a", 4s);
  deadlines.learn("b", 4s);
  deadlines.learn("a", 4s);
  deadlines.learn("c", 4s);
  EXPECT_EQ(deadlines.of("a"), 30s);
  EXPECT_EQ(deadlines.of("b"), 6s);
  EXPECT_EQ(deadlines.of("c"), 6s);
}

}  // namespace
}  // namespace tailrace
