#include "trainer/loss/advantage.h"

#include <gtest/gtest.h>

#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

// Two prompts of four samples. By hand from the formulas of advantage.h: the means are 1/2 and 3/4,
// the deviations (n - 1) sqrt(1/3) and 1/2, that of all eight rewards sqrt(15/56) = 0.517549.
const std::vector<double> kRewards = {1, 0, 0, 1, 1, 1, 1, 0};
const std::vector<int32_t> kGroups = {0, 4, 8};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                 double tolerance = 2e-6) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

TEST(Advantage, MatchesTheGoldenVectorsOfEachKind) {
  auto of = [](AdvantageKind kind) {
    return group_advantages(kind, 1e-6, kRewards, kGroups).advantage;
  };
  expect_near(of(AdvantageKind::kGroupMean), {.5, -.5, -.5, .5, .25, .25, .25, -.75});
  expect_near(of(AdvantageKind::kGroupMeanStd),
              {.866024, -.866024, -.866024, .866024, .499999, .499999, .499999, -1.499997});
  expect_near(of(AdvantageKind::kGroupMeanBatchStd),
              {.966090, -.966090, -.966090, .966090, .483045, .483045, .483045, -1.449135});
  expect_near(of(AdvantageKind::kLeaveOneOut),
              {.666667, -.666667, -.666667, .666667, .333333, .333333, .333333, -1});
}

TEST(Advantage, MatchesTheIndependentReferenceFile) {
  const auto golden = testing::read_json(testing::data_dir() / "golden/rl_math.json");
  for (const auto& group : golden.at("group_advantages")) {
    auto rewards = group.at("rewards").get<std::vector<double>>();
    std::vector<int32_t> offsets = {0, static_cast<int32_t>(rewards.size())};
    auto of = [&](AdvantageKind kind, double eps) {
      return group_advantages(kind, eps, rewards, offsets).advantage;
    };
    auto expected = [&](const char* key) { return group.at(key).get<std::vector<double>>(); };
    expect_near(of(AdvantageKind::kGroupMeanStd, 1e-6), expected("grpo_ddof1_eps1e-6"), 1e-10);
    expect_near(of(AdvantageKind::kGroupMeanStd, 1e-4), expected("grpo_ddof1_eps1e-4"), 1e-10);
    expect_near(of(AdvantageKind::kGroupMean, 0), expected("dr_grpo_mean_only"), 1e-10);
    expect_near(of(AdvantageKind::kLeaveOneOut, 0), expected("rloo_leave_one_out"), 1e-10);
  }
}

TEST(Advantage, GroupOfOneAndGroupOfEqualRewardsHaveNoSignal) {
  // 0.1 * 3 / 3 is not 0.1 in binary: the mean of equal rewards must not leave a residue.
  std::vector<double> rewards = {7, 0.1, 0.1, 0.1, 1, 2};
  std::vector<int32_t> groups = {0, 1, 4, 6};
  for (AdvantageKind kind : {AdvantageKind::kGroupMean, AdvantageKind::kGroupMeanStd,
                             AdvantageKind::kGroupMeanBatchStd, AdvantageKind::kLeaveOneOut}) {
    GroupAdvantages result = group_advantages(kind, 0, rewards, groups);
    EXPECT_EQ(result.zero_signal, (std::vector<bool>{true, true, false}));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(result.advantage[i], 0) << i;
    EXPECT_LT(result.advantage[4], 0);
    EXPECT_GT(result.advantage[5], 0);
  }
}

// Two sums of the same parts: their difference is of rounding, and divided by its own deviation it
// would be an advantage of 1.
TEST(Advantage, RewardsThatDifferInTheirLastDigitAreEqual) {
  const std::vector<double> rewards = {0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2};
  ASSERT_NE(rewards[0], rewards[1]);
  const std::vector<int32_t> groups = {0, 4};
  for (AdvantageKind kind : {AdvantageKind::kGroupMean, AdvantageKind::kGroupMeanStd,
                             AdvantageKind::kGroupMeanBatchStd, AdvantageKind::kLeaveOneOut}) {
    const GroupAdvantages result = group_advantages(kind, 0, rewards, groups);
    EXPECT_TRUE(result.zero_signal[0]);
    for (const double advantage : result.advantage) EXPECT_EQ(advantage, 0);
  }
}

TEST(Advantage, RemaxTakesTheGreedyMembersReward) {
  const std::vector<int32_t> groups = {0, 3, 6};
  const std::vector<uint8_t> greedy = {1, 0, 0, 1, 0, 0};
  const std::vector<double> rewards = {0, 1, 0, 1, 0, 1};
  const auto found = group_advantages(AdvantageKind::kGreedy, 0, rewards, groups, greedy);
  EXPECT_EQ(found.advantage, (std::vector<double>{0, 1, 0, 0, -1, 0}));
  // Without it, as a leave-one-out.
  const auto lost = group_advantages(AdvantageKind::kGreedy, 0, rewards, groups);
  EXPECT_NEAR(lost.advantage[1], 1, 1e-12);
}

TEST(Advantage, ARewardWithoutABaselineIsASignalAlsoInAGroupOfEquals) {
  const std::vector<double> rewards = {1, 1};
  const std::vector<int32_t> groups = {0, 2};
  const auto found = group_advantages(AdvantageKind::kReward, 0, rewards, groups);
  EXPECT_EQ(found.advantage, rewards);
  EXPECT_FALSE(found.zero_signal[0]);
}

// F32: a failure of reward 0 without a baseline has no negative signal.
TEST(Advantage, AFailureOfRewardZeroTeachesNothingWithoutABaseline) {
  const std::vector<double> rewards = {1, 0};
  const std::vector<int32_t> groups = {0, 2};
  EXPECT_EQ(group_advantages(AdvantageKind::kReward, 0, rewards, groups).advantage[1], 0);
  EXPECT_LT(group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups).advantage[1], 0);
}

}  // namespace
}  // namespace tailrace
