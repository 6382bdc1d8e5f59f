#include "trainer/loss/credit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(Credit, TurnReturnsMatchGoldenIpa1) {
  expect_numbers(discounted_returns(std::vector<double>{0, 0, 1}, .9), {.81, .9, 1});
  expect_numbers(discounted_returns(std::vector<double>{0, -.1, 1}, .95), {.8075, .85, 1});
  // Of a trajectory with a baseline: the last turn has its advantage, those before it a part.
  const std::vector<double> rewards = {0, 0, 1};
  const std::vector<TurnFacts> group = {
      {.advantage = .25, .baseline = .75, .scale = 1, .rewards = rewards}};
  expect_numbers(
      turn_credit({.kind = CreditKind::kTurnReturn, .gamma = .9}, false, 0, group).front(),
      {.25 * .81, .25 * .9, .25});
  // Without a discount the first turn has all of it, whatever the turns were paid.
  const std::vector<double> paid = {-.1, .3, .8};
  const std::vector<TurnFacts> other = {
      {.advantage = .5, .baseline = .75, .scale = 2, .rewards = paid}};
  EXPECT_NEAR(
      turn_credit({.kind = CreditKind::kTurnReturn, .gamma = 1}, false, 0, other).front().front(),
      .5, 1e-12);
}

TEST(Credit, GigpoMatchesGoldenGigpo1) {
  const std::vector<double> won = {0, 1}, lost = {0, 0};
  const std::vector<uint64_t> ab = {11, 22}, aa = {11, 11};
  const auto credit = [&](AdvantageKind kind) {
    const std::vector<double> rewards = {1, 0};
    const std::vector<int32_t> groups = {0, 2};
    const auto a = group_advantages(kind, 1e-6, rewards, groups);
    const std::vector<TurnFacts> group = {
        {.advantage = a.advantage[0], .rewards = won, .anchors = ab},
        {.advantage = a.advantage[1], .rewards = lost, .anchors = aa}};
    return turn_credit({.kind = CreditKind::kGigpo, .gamma = .95, .weight = 1},
                       divides_by_std(kind), 1e-6, group);
  };
  const auto mean = credit(AdvantageKind::kGroupMean);
  expect_numbers(mean[0], {1.133333, .5});
  expect_numbers(mean[1], {-0.816667, -0.816667});
  const auto std = credit(AdvantageKind::kGroupMeanStd);
  expect_numbers(std[0], {1.861804, 0.707106});
  expect_numbers(std[1], {-1.284455, -1.284455});
}

// F18: the statistics of an episode are over trajectories: a success of 2 turns and a failure of 4
// have the mean .5 and not 2 / 6.
TEST(Credit, GigposEpisodeStatisticsAreOverTrajectories) {
  const std::vector<double> won = {0, 1}, lost = {0, 0, 0, 0};
  const std::vector<double> rewards = {1, 0};
  const std::vector<int32_t> groups = {0, 2};
  const auto a = group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups);
  const std::vector<TurnFacts> group = {{.advantage = a.advantage[0], .rewards = won},
                                        {.advantage = a.advantage[1], .rewards = lost}};
  const auto credit = turn_credit({.kind = CreditKind::kGigpo}, false, 0, group);
  for (double value : credit[0]) EXPECT_EQ(value, .5);
  for (double value : credit[1]) EXPECT_EQ(value, -.5);
}

// Equal returns at a state are no noise over eps.
TEST(Credit, AStateWhoseReturnsAreEqualGivesNothing) {
  const std::vector<double> same = {.1, .2};
  const std::vector<uint64_t> anchors = {7, 8};
  const std::vector<TurnFacts> group(3, {.rewards = same, .anchors = anchors});
  for (const auto& turns : turn_credit({.kind = CreditKind::kGigpo}, true, 1e-9, group))
    for (double value : turns) EXPECT_EQ(value, 0);
}

// Sums of float32 in another order are the same reward; what differs by more is another one.
TEST(Credit, AStateWhoseReturnsDifferByTheirRoundingGivesNothing) {
  const auto largest = [](double noise, double size) {
    const std::vector<double> a = {size, .2}, b = {size + noise, .2};
    const std::vector<uint64_t> anchors = {7, 8};
    const std::vector<TurnFacts> group = {{.rewards = a, .anchors = anchors},
                                          {.rewards = b, .anchors = anchors}};
    double found = 0;
    for (const auto& turns : turn_credit({.kind = CreditKind::kGigpo}, true, 1e-9, group))
      for (double value : turns) found = std::max(found, std::abs(value));
    return found;
  };
  EXPECT_EQ(largest(3e-8, .1), 0);
  EXPECT_EQ(largest(.9e-6, .1), 0);
  EXPECT_GT(largest(2e-6, .1), .5);
  EXPECT_EQ(largest(3e-5, 300), 0);
  EXPECT_GT(largest(1e-3, 300), .5);
}

TEST(Credit, ARoundedIncrementIsNoTurn) {
  // Against the sign of the whole by its rounding alone, and really.
  expect_numbers(turning_point_rewards(std::vector<double>{.5, .5 - 3e-8, .7, .9}),
                 {-3e-8, .2 + 3e-8, .2});
  expect_numbers(turning_point_rewards(std::vector<double>{.5, .5 - 1e-5, .7, .9}),
                 {-1e-5, .4 + 1e-5, .2});
  expect_numbers(turning_point_rewards(std::vector<double>{300, 300 - 3e-5, 302, 305}),
                 {-3e-5, 2 + 3e-5, 3});
  // The whole has no sign either.
  expect_numbers(turning_point_rewards(std::vector<double>{.5, .4, .5 - 3e-8}), {-.1, .1});
}

TEST(Credit, TurningPointsOfEqualRewardsGiveNothing) {
  const auto largest = [](double noise, double size) {
    const std::vector<double> a = {0, size}, b = {0, size + noise};
    const std::vector<uint64_t> anchors = {1, 2};
    const std::vector<TurnFacts> group = {{.rewards = a, .anchors = anchors},
                                          {.rewards = b, .anchors = anchors}};
    double found = 0;
    for (const auto& turns : turn_credit({.kind = CreditKind::kTurningPoint}, false, 0, group))
      for (double value : turns) found = std::max(found, std::abs(value));
    return found;
  };
  EXPECT_EQ(largest(3e-8, .5), 0);
  EXPECT_EQ(largest(1e-3, 5000), 0) << "an increment is small, and what it rounds with is not";
  EXPECT_GT(largest(.1, .5), .5);
  EXPECT_GT(largest(.1, 5000), .5);
}

TEST(Credit, TurningPointsMatchGoldenTp1To3) {
  const auto rewards = [](std::vector<double> values) { return turning_point_rewards(values); };
  expect_numbers(rewards({.5, .4, .7, .6, .9}), {-.1, .5, -.1, .3});
  expect_numbers(rewards({.8, .9, .5, .6, .3}), {.1, -.6, .1, -.3});
  expect_numbers(rewards({.2, .5, .4, .6, .8}), {.3, -.1, .4, .2});
  // No difference as a whole, no turning point.
  expect_numbers(rewards({.5, .4, .5}), {-.1, .1});
  std::vector<std::vector<double>> group = {
      {-.1, .5, -.1, .3}, {.1, -.6, .1, -.3}, {.3, -.1, .4, .2}};
  normalise_by_turn(group);
  const std::vector<std::vector<double>> expected = {{-1.223995, 1.259844, -1.134998, 0.888662},
                                                     {0, -1.185735, -0.162143, -1.396469},
                                                     {1.223995, -0.074108, 1.297140, 0.507807}};
  for (size_t i = 0; i < 3; ++i) expect_numbers(group[i], expected[i]);
}

// The prefix value of a state is the mean outcome of those who met it.
TEST(Credit, TurningPointCreditIsThatOfTheTurnThatLeftASharedState) {
  // All start in 1; two go on to 2, of which one wins; the third goes to 3 and loses.
  const std::vector<double> won = {0, 1}, lost = {0, 0};
  const std::vector<uint64_t> to_2 = {1, 2}, to_3 = {1, 3};
  const std::vector<TurnFacts> group = {{.rewards = won, .anchors = to_2},
                                        {.rewards = lost, .anchors = to_2},
                                        {.rewards = lost, .anchors = to_3}};
  const auto credit = turn_credit({.kind = CreditKind::kTurningPoint}, false, 0, group);
  // First turn: V goes from 1/3 to 1/2, 1/2 and 0. To 2 was right, to 3 wrong, the same for both.
  EXPECT_GT(credit[0][0], 0);
  EXPECT_LT(credit[2][0], 0);
  // Second turn: from 1/2 to 1, from 1/2 to 0, and from 0 to 0.
  EXPECT_GT(credit[0][1], 0);
  EXPECT_LT(credit[1][1], credit[2][1]);
}

}  // namespace
}  // namespace tailrace
