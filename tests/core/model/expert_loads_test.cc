#include "core/model/expert_loads.h"

#include <numeric>

#include <gtest/gtest.h>

#include "kernels/ops/router.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

TEST(ExpertLoads, SaysHowUnevenTheyAre) {
  ExpertLoads loads(sparse_config());
  ASSERT_EQ(loads.num_layers(), 2);
  EXPECT_EQ(loads.idle_share(), 1);
  EXPECT_EQ(loads.balance_loss(), 0);
  loads.tokens = 14;
  for (int64_t& count : loads.choices_of(0)) count = 6;  // 3 of each token, alike
  loads.choices_of(1)[0] = loads.choices_of(1)[1] = loads.choices_of(1)[4] = 14;
  for (double& loss : loads.losses_of(0)) loss = 6;
  for (double& loss : loads.losses_of(1)) loss = 14;
  EXPECT_DOUBLE_EQ(loads.peak().worst, 7.0 / 3);
  EXPECT_DOUBLE_EQ(loads.peak().mean, (1 + 7.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(loads.idle_share(), 4.0 / 14);
  EXPECT_DOUBLE_EQ(loads.balance_loss(), (3 + 7) / 2.0);
  ExpertLoads sum = loads;
  sum.add(loads);
  EXPECT_EQ(sum.tokens, 28);
  EXPECT_EQ(sum.choices_of(1)[4], 28);
  EXPECT_DOUBLE_EQ(sum.balance_loss(), loads.balance_loss());
  sum.clear();
  EXPECT_EQ(sum.tokens, 0);
  EXPECT_EQ(sum.idle_share(), 1);
  EXPECT_EQ(ExpertLoads(awkward_config(true)).num_layers(), 0);
}

TEST(ExpertLoads, CountEveryChoiceOfAPass) {
  Rig rig(sparse_config(), /*num_threads=*/2);
  const auto sequences = random_sequences(5, 30, 67, 3);
  size_t tokens = 0;
  for (const Tokens& sequence : sequences) tokens += sequence.size();
  ExpertLoads loads(rig.model.config());
  Parameters with(rig.model.layout()), without(rig.model.layout());
  cross_entropy(rig, sequences, {}, &without);
  cross_entropy(rig, sequences, {}, &with, {.weight = 0, .loads = &loads});
  // Who only counts changes nothing.
  EXPECT_TRUE(std::ranges::equal(with.flat(), without.flat()));
  EXPECT_EQ(loads.tokens, static_cast<int64_t>(tokens));
  for (int64_t layer = 0; layer < 2; ++layer) {
    const auto counts = loads.choices_of(layer);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
              static_cast<int64_t>(3 * tokens));
  }
  EXPECT_GT(loads.balance_loss(), 2.5);
  Parameters balanced(rig.model.layout());
  cross_entropy(rig, sequences, {}, &balanced, {.weight = 0.1, .loads = &loads});
  EXPECT_FALSE(std::ranges::equal(balanced.flat(), without.flat()));
}

// Two of four experts, three tokens, of which the second chose for itself.
TEST(ExpertLoads, CompareWhatWasGivenWithWhatWouldHaveBeenChosen) {
  ModelConfig config = sparse_config();
  config.num_experts = 4;
  ExpertLoads loads(config);
  const std::vector<float> p = {0.4f, 0.3f, 0.2f, 0.1f, 1, 0, 0, 0, 0.25f, 0.25f, 0.25f, 0.25f};
  const std::vector<int32_t> given = {0, 2, kChoose, kChoose, 0, 1};
  loads.compare({p.data(), 3, 4}, {}, {given.data(), 3, 2});
  EXPECT_EQ(loads.given, 4);
  EXPECT_EQ(loads.moved, 1);  // 2 in place of 1; of equals the first two
  // The bias brings the last expert in: 0 and 3 are chosen of each.
  const std::vector<float> bias = {0, 0, 0, 0.25f};
  loads.compare({p.data(), 3, 4}, bias, {given.data(), 3, 2});
  EXPECT_EQ(loads.given, 8);
  EXPECT_EQ(loads.moved, 3);
  ExpertLoads sum(config);
  sum.add(loads);
  sum.add(loads);
  EXPECT_EQ(sum.given, 16);
  EXPECT_EQ(sum.moved, 6);
  sum.clear();
  EXPECT_EQ(sum.given + sum.moved, 0);
}

// Given choices are compared in the pass that counts them.
TEST(ExpertLoads, SayHowManyGivenChoicesAPassWouldNotHaveMade) {
  Rig rig(sparse_config(), /*num_threads=*/2);
  const auto sequences = random_sequences(5, 30, 67, 3);
  Parameters ignored(rig.model.layout());
  cross_entropy(rig, sequences, {}, &ignored);
  rig.given = rig.choices();
  ExpertLoads loads(rig.model.config());
  cross_entropy(rig, sequences, {}, &ignored, {.weight = 0, .loads = &loads});
  EXPECT_EQ(loads.given, std::ssize(rig.given));
  EXPECT_EQ(loads.moved, 0);
  rig.init(/*seed=*/2);
  loads.clear();
  cross_entropy(rig, sequences, {}, &ignored, {.weight = 0, .loads = &loads});
  EXPECT_EQ(loads.given, std::ssize(rig.given));
  EXPECT_GT(loads.moved, loads.given / 10);
  EXPECT_LT(loads.moved, loads.given);
}

}  // namespace
}  // namespace tailrace
