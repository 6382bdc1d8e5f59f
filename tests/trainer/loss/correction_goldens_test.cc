// Golden MM-4: weights of mean 1, however a minibatch is cut.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/fixtures.h"
#include "tests/trainer/loss/tokens.h"
#include "trainer/loss_columns.h"
#include "trainer/token_advantages.h"

namespace tailrace {
namespace {

// Sequences of one trajectory each, whose tokens have these ratios of old to behaviour and the
// advantage 1.
TrainBatch batch_of_ratios(const std::vector<std::vector<double>>& sequences) {
  TrainBatch batch;
  for (const std::vector<double>& ratios : sequences) {
    TrainSequence s;
    s.trajectory = static_cast<int32_t>(std::ssize(batch.sequences));
    for (double ratio : ratios) {
      s.targets.push_back(static_cast<int32_t>(s.targets.size()) + 1);
      s.behaviour_logprobs.push_back(-1);
      s.old_logprobs.push_back(static_cast<float>(-1 + std::log(ratio)));
    }
    s.advantages.assign(ratios.size(), 1);
    s.turns.assign(ratios.size(), 0);
    batch.trajectory_tokens.push_back(static_cast<int32_t>(ratios.size()));
    batch.sequences.push_back(std::move(s));
  }
  return batch;
}

PolicyLossConfig normalized(CorrectionOptions correction) {
  PolicyLossConfig config = testing::plain(.2, .2);
  correction.normalize = true;
  config.correction = correction;
  return config;
}

// The weights of the tokens of a minibatch: at l = l_old and A = 1 the gradient is their negative
// over the number of tokens.
std::vector<double> trained_weights(const TrainBatch& batch, const Minibatch& minibatch,
                                    const PolicyLossConfig& config) {
  LossCounts counts = loss_counts(batch, minibatch);
  counts.mean_correction = mean_correction(batch, minibatch, config.correction);
  const LossColumns columns(
      std::span(batch.sequences).subspan(minibatch.begin, minibatch.end - minibatch.begin));
  const size_t n = columns.mask.size();
  std::vector<float> dlogprob(n), dentropy(n), entropy(n);
  PolicyLossInput input = columns.input({});
  input.logprob = columns.old_logprob;
  input.entropy = entropy;
  policy_loss(config, input, counts, dlogprob, dentropy);
  std::vector<double> weights;
  for (float g : dlogprob) weights.push_back(-double{g} * static_cast<double>(counts.tokens));
  return weights;
}

void expect_weights(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t t = 0; t < found.size(); ++t) EXPECT_NEAR(found[t], expected[t], 2e-6) << t;
}

constexpr CorrectionOptions kMisOfGolden = {
    .kind = CorrectionKind::kMis, .low = .5, .cap = 2, .veto = 1e-4};

TEST(CorrectionNormalize, MatchesGoldenMm4) {
  const TrainBatch batch = batch_of_ratios({{.9, 1.2}, {2.5, 1.0}, {5e-5, 1.0}});
  EXPECT_NEAR(mean_correction(batch, {0, 2}, kMisOfGolden), .775, 2e-6);
  expect_weights(trained_weights(batch, {0, 2}, normalized(kMisOfGolden)),
                 {1.161290, 1.548387, 0, 1.290323});
  // The vetoed sequence's tokens are valid tokens of weight 0.
  EXPECT_NEAR(mean_correction(batch, {0, 3}, kMisOfGolden), 3.1 / 6, 2e-6);
  expect_weights(trained_weights(batch, {0, 3}, normalized(kMisOfGolden)),
                 {.9 * 6 / 3.1, 1.2 * 6 / 3.1, 0, 6 / 3.1, 0, 0});
}

// What is in no denominator is not in the mean either.
TEST(CorrectionNormalize, TokensThatLeftAreNotInTheMean) {
  TrainBatch batch = batch_of_ratios({{.9, 1.2}, {2.5, 1.0}, {5e-5, 1.0}});
  CorrectionOptions leaving = kMisOfGolden;
  leaving.rejected = RejectedTokens::kLeave;
  mask_rejected(batch, leaving);
  EXPECT_NEAR(mean_correction(batch, {0, 3}, leaving), 3.1 / 3, 2e-6);
  expect_weights(trained_weights(batch, {0, 3}, normalized(leaving)),
                 {.9 * 3 / 3.1, 1.2 * 3 / 3.1, 0, 3 / 3.1, 0, 0});
}

TEST(CorrectionNormalize, WhereEveryWeightIsZeroNothingIsDivided) {
  const TrainBatch batch = batch_of_ratios({{5, 6}});
  EXPECT_EQ(mean_correction(batch, {0, 1}, kMisOfGolden), 1);
  expect_weights(trained_weights(batch, {0, 1}, normalized(kMisOfGolden)), {0, 0});
}

// A trainer whose weights did not sample: its gradient is that without it, over the mean weight of
// the whole batch, however the batch is cut.
TEST(CorrectionNormalize, AnotherCutIntoMicroBatchesOrSlotsHasTheSameMean) {
  const std::vector<Trajectory> trajectories = testing::recorded(3, 4);
  double mean = 0;
  const auto stale_gradient = [&](const TrainOptions& train, bool normalize) {
    auto trainer = testing::tiny_trainer(train, testing::kStill, {}, /*seed=*/2);
    TrainBatch batch = testing::make_batch(trajectories);
    PolicyLossConfig config;
    config.correction.cap = 1.5;
    config.correction.normalize = normalize;
    trainer->prepare_step(batch, 3, config);
    const Minibatch all = {0, batch.sequences.size()};
    trainer->policy_update(batch, all, config, 3);
    mean = mean_correction(batch, all, config.correction);
    return testing::copy(trainer->gradients().flat());
  };
  std::vector<float> expected = stale_gradient({}, false);
  EXPECT_GT(std::abs(mean - 1), .001);
  for (float& g : expected) g = static_cast<float>(g / mean);
  for (const int64_t tokens : {1, 30, 4096}) {
    for (const int64_t slots : {1, 3}) {
      const std::vector<float> found =
          stale_gradient({.microbatch_tokens = tokens, .gradient_slots = slots}, true);
      double norm = 0, difference = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        norm += double{expected[i]} * expected[i];
        difference += std::pow(double{found[i]} - expected[i], 2);
      }
      EXPECT_GT(norm, 0);
      // The same terms, added in another order.
      EXPECT_LT(std::sqrt(difference / norm), 1e-5) << tokens << ' ' << slots;
    }
  }
}

TEST(CorrectionLevels, AProductGrowsWithTheLengthAndAGeometricMeanDoesNot) {
  const std::vector<double> log_weight(1000, .001);
  const std::vector<int32_t> turn(1000);
  std::vector<double> weight(1000);
  correction_weights({.level = CorrectionLevel::kSequence, .cap = 5}, log_weight, turn, weight);
  EXPECT_NEAR(weight.front(), 2.718282, 2e-6);
  correction_weights({.level = CorrectionLevel::kSequenceMean, .cap = 5}, log_weight, turn, weight);
  EXPECT_NEAR(weight.front(), 1.001001, 2e-6);
}

}  // namespace
}  // namespace tailrace
