// Losses of a training step where its log-probabilities are: on a GPU. The CPU's loss is
// trainer/loss/policy_loss.cc, which these agree with.
//
// Sums are in double, in an order that the offsets decide; nothing is added atomically.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/ops/loss_terms.h"

namespace tailrace {

// Sums and extremes over tokens. All are doubles, so that a kernel treats them alike; counts are
// exact in them.
struct PolicySums {
  // Sums over trained tokens. The terms are aggregated, before their coefficients.
  double policy_term = 0, kl_term = 0, entropy_term = 0, imitation_term = 0;
  double tokens = 0, clipped_low = 0, clipped_high = 0, dual_clipped = 0;
  double clamped = 0;          // log-ratios and the like cut at kMaxLogRatio
  double sequence_masked = 0;  // tokens without loss by PolicyRule::sequence_mask
  double old_minus_new = 0, drift_k3 = 0, entropy = 0;
  // Sums over the tokens that were recorded under the current weights: |l - recorded|.
  double current_tokens = 0, mismatch_abs = 0;
  // Extremes.
  double mismatch_abs_max = 0, ratio_max = 1, ratio_min = 1;
};
constexpr int kNumPolicySums = static_cast<int>(sizeof(PolicySums) / sizeof(double));
constexpr int kNumPolicyExtremes = 3;  // the last ones: two largest values, then the smallest

// How a token counts.
constexpr uint8_t kTrainedToken = 1;   // else it has no gradient, whatever its other values are
constexpr uint8_t kPositiveToken = 2;  // the reward of its trajectory is above 0
constexpr uint8_t kCurrentToken = 4;   // `recorded` is of the current weights

// [tokens] of a micro-batch but for the offsets. The tokens of a turn are consecutive, and so are
// the turns of a sequence.
struct PolicyTokens {
  std::span<const float> logprob;            // l: current weights
  std::span<const float> entropy;            // H
  std::span<const float> old_logprob;        // l_old
  std::span<const float> behaviour_logprob;  // l_inf
  std::span<const float> kl_logprob;         // of the other policy of the KL term; empty: none
  std::span<const float> recorded;
  std::span<const float> advantage;
  std::span<const double> weight;      // a: of the aggregation
  std::span<const double> correction;  // c
  std::span<const uint8_t> flags;
  std::span<const int32_t> turns;           // [turns + 1] offsets in tokens
  std::span<const int32_t> sequence_turns;  // [sequences + 1] offsets in turns
};

// The point on the axes of the loss (trainer/loss/policy_loss.h).
struct PolicyRule {
  SurrogateRule surrogate = {};
  RatioUnit ratio = RatioUnit::kToken;
  double sequence_mask = 0;  // 0: off
  KlEstimator kl_estimator = KlEstimator::kK3;
  bool kl_unbiased = false;
  double kl_coef = 0;  // 0: no gradient; the term is summed all the same
  double entropy_coef = 0;
  double imitation_coef = 0;
  ImitationLevel imitation_level = ImitationLevel::kTokenMean;
};

// dlogprob, dentropy [tokens]: dL/dl and dL/dH, 0 for tokens that are not trained. dentropy may be
// empty where entropy_coef is 0.
struct PolicyGradient {
  PolicyTokens tokens;
  PolicyRule rule;
  std::span<float> dlogprob, dentropy;
  std::span<PolicySums> scratch;  // [sequences]
  std::span<PolicySums> sums;     // [1] added to
};
void policy_gradient(const Stream& stream, const PolicyGradient& args);

// L = -weight * (sum of logprob): dlogprob [tokens], and the sum of -logprob is added to `sum` [1].
struct CrossEntropy {
  std::span<const float> logprob;
  double weight = 1;
  std::span<float> dlogprob;
  std::span<double> sum;
};
void cross_entropy(const Stream& stream, const CrossEntropy& args);

}  // namespace tailrace
