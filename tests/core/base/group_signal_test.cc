#include "core/base/group_signal.h"

#include <initializer_list>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

bool has(std::initializer_list<double> rewards) {
  GroupSignal signal;
  for (const double reward : rewards) signal.add(reward);
  return signal.has();
}

TEST(GroupSignal, SumsThatDifferInTheirLastDigitsAreEqual) {
  EXPECT_FALSE(has({0.1 + 0.2, 0.3}));
  EXPECT_FALSE(has({0.1 + 0.2 - 0.3, 0, -1e-17}));
  EXPECT_FALSE(has({1e6 + 0.1 + 0.2, 1e6 + 0.3}));
  EXPECT_FALSE(has({-0.7 - 0.1, -0.8}));
  EXPECT_TRUE(has({0.3, 0.3 + 1e-8}));
  EXPECT_TRUE(has({0, 1e-8}));
  EXPECT_TRUE(has({1e6, 1e6 + 0.5}));
  EXPECT_TRUE(has({-1, 1}));
}

TEST(GroupSignal, AGroupOfOneHasNone) {
  EXPECT_FALSE(has({}));
  EXPECT_FALSE(has({3}));
}

TEST(GroupSignal, WhatIsJudgedCountsInThePlaceOfTheReward) {
  const auto judged = [](std::initializer_list<std::pair<double, std::optional<double>>> samples) {
    GroupSignal signal;
    for (const auto& [reward, value] : samples) signal.add(reward, value);
    return signal.has();
  };
  EXPECT_FALSE(judged({{0.1, 0}, {0.4, 0}})) << "a small part differs";
  EXPECT_TRUE(judged({{0.1, 0}, {0.4, 1}, {0.3, 0}}));
  EXPECT_TRUE(judged({{1, 0}, {1, 1}}));
  // A sample that lacks it says nothing; where all do, the rewards speak.
  EXPECT_FALSE(judged({{0.1, 0}, {0.4, std::nullopt}, {0.2, 0}}));
  EXPECT_FALSE(judged({{0.1, 0}, {0.4, std::nullopt}}));
  EXPECT_TRUE(judged({{0.1, std::nullopt}, {0.4, std::nullopt}}));
}

}  // namespace
}  // namespace tailrace
