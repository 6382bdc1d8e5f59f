#include "core/base/group_signal.h"

#include <algorithm>
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
  EXPECT_FALSE(has({0.3, 0.3 + 0.9e-6}));
  EXPECT_TRUE(has({0.3, 0.3 + 1.1e-6}));
  EXPECT_FALSE(has({0, 0.9e-6}));
  EXPECT_TRUE(has({0, 1.1e-6}));
  EXPECT_FALSE(has({1e6, 1e6 + 0.9}));
  EXPECT_TRUE(has({1e6, 1e6 + 1.1}));
  EXPECT_TRUE(has({-1, 1}));
}

// A program that adds up ten parts in float32, in two orders.
TEST(GroupSignal, SumsOfFloat32PartsAreEqual) {
  for (const float scale : {0.1F, 3.0F, 300.0F}) {
    float up = 0, down = 0;
    for (int i = 1; i <= 10; ++i) up += scale / static_cast<float>(i);
    for (int i = 10; i >= 1; --i) down += scale / static_cast<float>(i);
    EXPECT_NE(up, down) << scale;
    EXPECT_FALSE(has({up, down})) << scale;
    EXPECT_TRUE(has({up, up + 1e-5 * std::max(1.0F, scale)})) << scale;
  }
}

TEST(GroupSignal, DifferencesRoundAsWhatTheyAreDifferencesOf) {
  EXPECT_FALSE(are_equal_rewards(0, 1e-3));
  EXPECT_TRUE(are_equal_rewards(0, 0.9e-3, 1e3));
  EXPECT_FALSE(are_equal_rewards(0, 1.1e-3, 1e3));
  EXPECT_TRUE(same_reward(0.3 + 0.9e-6, 0.3));
  EXPECT_FALSE(same_reward(0.3 + 1.1e-6, 0.3));
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
