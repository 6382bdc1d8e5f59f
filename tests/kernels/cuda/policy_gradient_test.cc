// The losses of a GPU against those of the CPU: gradients, terms and counts, for every point of the
// axes.
#include "kernels/cuda/gpu_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/kernels/cuda/device_array.h"
#include "tests/trainer/loss/tokens.h"
#include "trainer/loss/gradient_columns.h"

namespace tailrace {
namespace {

using namespace cuda_testing;
using testing::Tokens;

class CudaPolicyGradient : public ::testing::Test {
 protected:
  ~CudaPolicyGradient() override { expect_no_findings(); }
  const Stream stream = gpu_stream();
};

struct LossCase {
  Tokens tokens;
  std::vector<int32_t> trajectory_tokens;
  LossCounts counts;

  explicit LossCase(Tokens own)
      : tokens(std::move(own)), trajectory_tokens(tokens.trajectory_tokens()) {
    counts.trajectory_tokens = trajectory_tokens;
    for (const int32_t n : trajectory_tokens) {
      counts.tokens += n;
      counts.trajectories += n > 0;
    }
    counts.mean_correction = 0.9;
  }
};

struct Found {
  PolicyLossResult result;
  PolicySums sums;
  std::vector<float> dlogprob, dentropy;
};

template <class T>
std::vector<std::remove_const_t<T>> copied(std::span<T> values) {
  return {values.begin(), values.end()};
}

// `sums`: what was there before.
Found on_device(const Stream& stream, const PolicyLossConfig& config, const LossCase& loss,
                const PolicySums& before = {}) {
  const PolicyLossInput input = loss.tokens.input();
  GradientColumns columns = gradient_columns(config, input, loss.counts);
  const auto kl = kl_logprob(config, input);
  const size_t n = input.logprob.size(), sequences = columns.sequence_turns.size() - 1;
  // Each third token is the current weights' own.
  std::vector<float> recorded(n);
  for (size_t t = 0; t < n; ++t) {
    recorded[t] = input.logprob[t] + 0.125f * static_cast<float>(t);
    if (t % 3 == 0) columns.flags[t] |= kCurrentToken;
  }
  const DeviceArray<float> logprob(copied(input.logprob)), entropy(copied(input.entropy)),
      old(copied(input.old_logprob)), behaviour(copied(input.behaviour_logprob)), other(copied(kl)),
      advantage(copied(input.advantage)), own(recorded);
  const DeviceArray<double> weight(columns.weight), correction(columns.correction);
  // The checker looks at two bytes together.
  columns.flags.resize((n + 1) / 2 * 2);
  const DeviceArray<uint8_t> flags(columns.flags);
  const DeviceArray<int32_t> turns(columns.turns), sequence_turns(columns.sequence_turns);
  const bool regularised = config.entropy_coef != 0;
  DeviceArray<float> dlogprob(n), dentropy(regularised ? n : 0);
  DeviceArray<PolicySums> scratch(sequences), sums(std::vector<PolicySums>{before});
  cuda::policy_gradient(stream, {.tokens = {.logprob = logprob.span(),
                                            .entropy = entropy.span(),
                                            .old_logprob = old.span(),
                                            .behaviour_logprob = behaviour.span(),
                                            .kl_logprob = other.span(),
                                            .recorded = own.span(),
                                            .advantage = advantage.span(),
                                            .weight = weight.span(),
                                            .correction = correction.span(),
                                            .flags = flags.span().first(n),
                                            .turns = turns.span(),
                                            .sequence_turns = sequence_turns.span()},
                                 .rule = policy_rule(config),
                                 .dlogprob = dlogprob.span(),
                                 .dentropy = dentropy.span(),
                                 .scratch = scratch.span(),
                                 .sums = sums.span()});
  Found found{{}, sums.get()[0], dlogprob.get(), dentropy.get()};
  found.result = policy_result(config, found.sums);
  found.result.stats.add(columns.stats);
  return found;
}

// Sums of doubles in another order. Of floats that are sums of several terms, one more rounding.
void expect_close(double found, double expected, const std::string& what, double relative = 1e-9) {
  EXPECT_NEAR(found, expected, relative * std::abs(expected) + 1e-12) << what;
}

void expect_stats(const PolicyLossStats& found, const PolicyLossStats& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.clipped_low, expected.clipped_low);
  EXPECT_EQ(found.clipped_high, expected.clipped_high);
  EXPECT_EQ(found.dual_clipped, expected.dual_clipped);
  EXPECT_EQ(found.clamped, expected.clamped);
  EXPECT_EQ(found.correction_cut, expected.correction_cut);
  EXPECT_EQ(found.sequence_masked, expected.sequence_masked);
  expect_close(found.ratio_min, expected.ratio_min, "ratio_min");
  expect_close(found.ratio_max, expected.ratio_max, "ratio_max");
  expect_close(found.correction_sum, expected.correction_sum, "correction_sum");
  expect_close(found.correction_max, expected.correction_max, "correction_max");
  expect_close(found.old_minus_new_sum, expected.old_minus_new_sum, "old_minus_new");
  expect_close(found.drift_k3_sum, expected.drift_k3_sum, "drift_k3");
  expect_close(found.mismatch_k3_sum, expected.mismatch_k3_sum, "mismatch_k3");
  expect_close(found.entropy_sum, expected.entropy_sum, "entropy");
}

void compare(const Stream& stream, const PolicyLossConfig& config, const LossCase& loss) {
  const size_t n = loss.tokens.l.size();
  std::vector<float> dlogprob(n), dentropy(config.entropy_coef != 0 ? n : 0);
  const PolicyLossResult expected =
      policy_loss(config, loss.tokens.input(), loss.counts, dlogprob, dentropy);
  const Found found = on_device(stream, config, loss);
  for (size_t t = 0; t < n; ++t)
    expect_close(found.dlogprob[t], dlogprob[t], fmt::format("dlogprob {}", t), 1e-6);
  ASSERT_EQ(found.dentropy.size(), dentropy.size());
  for (size_t t = 0; t < dentropy.size(); ++t)
    expect_close(found.dentropy[t], dentropy[t], fmt::format("dentropy {}", t), 1e-6);
  expect_close(found.result.loss, expected.loss, "loss");
  expect_close(found.result.policy_term, expected.policy_term, "policy_term");
  expect_close(found.result.kl_term, expected.kl_term, "kl_term");
  expect_close(found.result.entropy_term, expected.entropy_term, "entropy_term");
  expect_close(found.result.imitation_term, expected.imitation_term, "imitation_term");
  expect_stats(found.result.stats, expected.stats);
}

// Sequences of up to `longest` tokens in turns, of which some are masked, a whole sequence among
// them. Where a token is masked all of its values are NaN.
Tokens long_tokens(uint64_t seed, int64_t longest) {
  Rng rng(seed);
  Tokens tokens;
  for (int s = 0; s < 5; ++s) {
    std::vector<float> l, old, inf, ref;
    const int64_t n = s == 1 ? longest : 1 + rng.below(longest);
    const size_t first = tokens.l.size();
    for (int64_t t = 0; t < n; ++t) {
      old.push_back(static_cast<float>(-3 * rng.uniform() - .1));
      // Few are so far away that their logarithms are cut.
      const double spread = rng.chance(.02) ? 30 : .5;
      // One sequence is, as a whole.
      const double apart = s == 2 ? -25 : 0;
      l.push_back(old.back() + static_cast<float>(apart + spread * rng.normal()));
      inf.push_back(old.back() + static_cast<float>(.5 * rng.normal()));
      ref.push_back(old.back() + static_cast<float>(.5 * rng.normal()));
    }
    tokens.add(l, old, 0, inf, ref);
    int32_t turn = 0;
    for (size_t t = first; t < tokens.l.size(); ++t) {
      turn += rng.chance(.1);
      tokens.turn[t] = turn;
      tokens.advantage[t] = static_cast<float>(rng.normal());
      tokens.entropy[t] = static_cast<float>(rng.uniform());
      tokens.positive[t] = s % 2 == 0;
      tokens.trajectory[t] = s == 4 ? 0 : s;
      tokens.mask[t] = s != 3 && rng.chance(.8);
      if (tokens.mask[t] != 0) continue;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      tokens.l_old[t] = tokens.l_inf[t] = tokens.l_ref[t] = nan;
      tokens.advantage[t] = tokens.entropy[t] = nan;
    }
  }
  return tokens;
}

template <class Enum>
std::vector<Enum> all_values() {
  std::vector<Enum> values;
  for (size_t i = 0; i < kEnumNames<Enum>.size(); ++i) values.push_back(static_cast<Enum>(i));
  return values;
}

TEST_F(CudaPolicyGradient, AgreesWithTheCpuForEverySurrogateAndUnit) {
  const LossCase few(testing::random_tokens(3)), many(long_tokens(4, 300));
  for (const auto kind : all_values<SurrogateKind>())
    for (const auto ratio : all_values<RatioUnit>())
      for (const LossCase* loss : {&few, &many}) {
        SCOPED_TRACE(fmt::format("{} by {}, {} tokens", name_of(kind), name_of(ratio),
                                 loss->tokens.l.size()));
        PolicyLossConfig config;
        config.ratio = ratio;
        config.surrogate.kind = kind;
        config.surrogate.clip_c = 1.5;
        config.entropy_coef = 0.01;
        config.kl.coef = 0.1;
        compare(stream, config, *loss);
      }
}

TEST_F(CudaPolicyGradient, AgreesWithTheCpuForEveryCorrectionAndAggregation) {
  const LossCase loss(testing::random_tokens(5));
  for (const auto kind : all_values<CorrectionKind>())
    for (const auto level : all_values<CorrectionLevel>())
      for (const auto aggregation : all_values<AggregationKind>()) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(kind), name_of(level), name_of(aggregation)));
        PolicyLossConfig config;
        config.correction = {.kind = kind, .level = level, .low = .8, .cap = 1.2, .veto = .4};
        config.correction.normalize = level == CorrectionLevel::kToken;
        config.correction.sequence_mask = level == CorrectionLevel::kSequence ? .05 : 0;
        config.aggregation = {.kind = aggregation, .const_tokens = 7};
        compare(stream, config, loss);
      }
}

TEST_F(CudaPolicyGradient, AgreesWithTheCpuForEveryPenalty) {
  const LossCase loss(long_tokens(6, 150));
  for (const KlEstimator estimator : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3})
    for (const KlTarget target : {KlTarget::kReference, KlTarget::kBehaviour})
      for (const KlPlacement placement : {KlPlacement::kLoss, KlPlacement::kReward})
        for (const bool unbiased : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", name_of(estimator), name_of(target),
                                   name_of(placement), unbiased));
          PolicyLossConfig config;
          config.kl = {.coef = 0.3,
                       .estimator = estimator,
                       .target = target,
                       .placement = placement,
                       .unbiased = unbiased};
          compare(stream, config, loss);
        }
}

TEST_F(CudaPolicyGradient, AgreesWithTheCpuForImitation) {
  const LossCase loss(long_tokens(7, 40));
  for (const ImitationLevel level : {ImitationLevel::kTokenMean, ImitationLevel::kTurn}) {
    PolicyLossConfig config;
    config.ratio = RatioUnit::kTurn;
    config.surrogate.kind = SurrogateKind::kIpa;
    config.imitation = {.coef = 0.5, .level = level};
    compare(stream, config, loss);
  }
}

TEST_F(CudaPolicyGradient, MasksFailuresThatThePolicyNoLongerWrites) {
  const LossCase loss(long_tokens(8, 60));
  int64_t masked = 0;
  for (const double bound : {-2.0, 0.05, 0.5}) {
    PolicyLossConfig config;
    config.correction.sequence_mask = bound;
    compare(stream, config, loss);
    masked += on_device(stream, config, loss).result.stats.sequence_masked;
  }
  EXPECT_GT(masked, 0);
}

// Micro-batches add up, and the extremes are those of all.
TEST_F(CudaPolicyGradient, AddsToTheSumsThatAreThere) {
  const LossCase loss(testing::random_tokens(9));
  const PolicyLossConfig config;
  const PolicySums once = on_device(stream, config, loss).sums;
  PolicySums before;
  before.policy_term = 3;
  before.tokens = 100;
  before.mismatch_abs_max = 1e6;
  before.ratio_max = 1e-3;
  before.ratio_min = 1e-9;
  const PolicySums twice = on_device(stream, config, loss, before).sums;
  EXPECT_DOUBLE_EQ(twice.policy_term, once.policy_term + 3);
  EXPECT_EQ(twice.tokens, once.tokens + 100);
  EXPECT_EQ(twice.mismatch_abs_max, 1e6);
  EXPECT_EQ(twice.ratio_max, once.ratio_max);
  EXPECT_EQ(twice.ratio_min, 1e-9);
}

TEST_F(CudaPolicyGradient, MeasuresTheTokensOfTheCurrentWeights) {
  const LossCase loss(testing::random_tokens(10));
  const PolicySums sums = on_device(stream, {}, loss).sums;
  double sum = 0, largest = 0, count = 0;
  for (size_t t = 0; t < loss.tokens.l.size(); t += 3, ++count) {
    const float recorded = loss.tokens.l[t] + 0.125f * static_cast<float>(t);
    const double apart = std::abs(double{loss.tokens.l[t]} - recorded);
    sum += apart;
    largest = std::max(largest, apart);
  }
  EXPECT_EQ(sums.current_tokens, count);
  EXPECT_DOUBLE_EQ(sums.mismatch_abs, sum);
  EXPECT_EQ(sums.mismatch_abs_max, largest);
}

TEST_F(CudaPolicyGradient, CrossEntropyAddsWhatItMinimises) {
  std::mt19937 rng(11);
  for (const int64_t n : {1, 127, 128, 1000}) {
    const std::vector<float> values = random_floats(n, rng);
    const DeviceArray<float> logprob(values);
    DeviceArray<float> dlogprob(static_cast<size_t>(n));
    DeviceArray<double> sum(std::vector<double>{2});
    cuda::cross_entropy(stream, {.logprob = logprob.span(),
                                 .weight = 0.25,
                                 .dlogprob = dlogprob.span(),
                                 .sum = sum.span()});
    double expected = 2;
    for (const float l : values) expected -= l;
    EXPECT_NEAR(sum.get()[0], expected, 1e-9);
    for (const float gradient : dlogprob.get()) EXPECT_EQ(gradient, -0.25f);
  }
}

}  // namespace
}  // namespace tailrace
