#include "trainer/loss/mismatch.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/fixtures.h"
#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

TEST(Mismatch, MatchesGoldenMm5) {
  const testing::Tokens tokens = testing::f1(1);
  MismatchSums sums;
  sums.add(tokens.l_inf, tokens.l_old);
  const Mismatch found = sums.mean();
  EXPECT_NEAR(found.k1, -0.066667, 2e-6);
  EXPECT_NEAR(found.abs_prob_diff, (.066685 + .099298) / 3, 2e-6);
  EXPECT_NEAR(found.max_prob_diff, .099298, 2e-6);
  EXPECT_NEAR(found.chi2, 0.298620, 2e-6);
  EXPECT_NEAR(found.ppl_ratio, 0.935507, 2e-6);
  // Deviations from the means: (1/30, -17/30, 16/30) and (-7/30, -7/30, 14/30); their products sum
  // to 336 / 900, their squares to 546 / 900 and 294 / 900.
  EXPECT_NEAR(found.correlation.value(), 336 / std::sqrt(546.0 * 294.0), 2e-6);
}

// A perplexity is of a sequence; all else is of tokens.
TEST(Mismatch, SequencesAddUp) {
  MismatchSums sums;
  sums.add(std::vector<float>{-1, -1, -1}, std::vector<float>{-2, -2, -2});
  sums.add(std::vector<float>{}, std::vector<float>{});
  sums.add(std::vector<float>{-3}, std::vector<float>{-2.5f});
  EXPECT_NEAR(sums.mean().k1, 2.5 / 4, 1e-12);
  EXPECT_NEAR(sums.mean().ppl_ratio, (std::exp(1) + std::exp(-.5)) / 2, 1e-12);
  EXPECT_NEAR(sums.mean().chi2, (3 * std::exp(-2) + std::exp(1)) / 4 - 1, 1e-12);
}

TEST(Mismatch, OfOnePolicyItIsExactlyNothing) {
  Rng rng(8);
  std::vector<float> logprobs;
  for (int t = 0; t < 1000; ++t) logprobs.push_back(static_cast<float>(-5 * rng.uniform()));
  MismatchSums sums;
  sums.add(logprobs, logprobs);
  const Mismatch found = sums.mean();
  for (double value : {found.k1, found.abs_prob_diff, found.max_prob_diff, found.chi2})
    EXPECT_EQ(value, 0);
  EXPECT_EQ(found.ppl_ratio, 1);
  EXPECT_EQ(found.correlation, 1);
  MismatchSums constant;
  constant.add(std::vector<float>(7, -.1f), std::vector<float>(7, -.1f));
  EXPECT_FALSE(constant.mean().correlation);
}

TEST(Mismatch, FarTokensAreCutAndStayFinite) {
  MismatchSums sums;
  sums.add(std::vector<float>{-1000, -1}, std::vector<float>{-1, -1000});
  EXPECT_TRUE(std::isfinite(sums.mean().chi2));
  EXPECT_NEAR(sums.mean().k1, 0, 1e-12);
}

// A step says them, of tokens that the trainer's own weights did not sample.
TEST(Mismatch, AStepHasItAmongItsMetrics) {
  const std::vector<Trajectory> trajectories = testing::recorded(2, 3);
  const auto step = [&](uint64_t seed, int64_t version) {
    auto trainer = testing::tiny_trainer({}, testing::kStill, {}, seed);
    TrainBatch batch = testing::make_batch(trajectories);
    const MetricList metrics = trainer->policy_step(batch, version, testing::loss_config());
    double k1 = 0, w2 = 0, tokens = 0;
    for (const TrainSequence& s : batch.sequences) {
      tokens += static_cast<double>(s.targets.size());
      for (size_t k = 0; k < s.targets.size(); ++k) {
        const double gap = double{s.behaviour_logprobs[k]} - s.old_logprobs[k];
        k1 += gap;
        w2 += std::exp(-2 * gap);
      }
    }
    EXPECT_NEAR(testing::metric(metrics, "mismatch/kl_k1"), k1 / tokens, 1e-12);
    EXPECT_NEAR(testing::metric(metrics, "mismatch/chi2"), w2 / tokens - 1, 1e-9);
    return metrics;
  };
  const MetricList own = step(1, 0), other = step(2, 3);
  EXPECT_EQ(testing::metric(own, "mismatch/chi2"), 0);
  for (const char* name : {"mismatch/abs_prob_diff", "mismatch/max_prob_diff"}) {
    EXPECT_EQ(testing::metric(own, name), 0) << name;
    EXPECT_GT(testing::metric(other, name), 0) << name;
  }
  EXPECT_EQ(testing::metric(own, "mismatch/ppl_ratio"), 1);
  EXPECT_EQ(testing::metric(own, "mismatch/logprob_correlation"), 1);
  EXPECT_LT(testing::metric(other, "mismatch/logprob_correlation"), 1);
}

}  // namespace
}  // namespace tailrace
