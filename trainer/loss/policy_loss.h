// The policy loss: a pure function from log-probabilities and advantages to a number and its
// gradient.
//
// It is a point on independent axes, each in its own file: reward shaping, advantage and credit
// (computed before: shaping.h, advantage.h, credit.h, returns.h), ratio granularity (here),
// surrogate.h, correction.h, kl_estimator.h, imitation.h, aggregation.h. A new algorithm is a new
// value of one axis.
//
//   loss = sum over trained tokens of  a_t (c_t S(rho_t, A_t) + kl.coef KL_t - entropy_coef H_t
//                                             + imitation.coef I_t)
//
// a: aggregation weight; c: correction, detached; S: surrogate; rho: the ratio exp(l - l_old) of
// the token, or the geometric mean over its turn or sequence; KL against l_ref or l_inf; I:
// imitation, of the turns of successes.
//
// Three policies: what sampled (l_inf), what the step starts from (l_old), what learns (l).
// Decoupled PPO (AReaL, 2505.24298) is S = kPpoClip, whose clip is around l_old, with c =
// min(exp(l_old - l_inf), cap). A surrogate that weighs_behaviour() has u = exp(l - l_inf) of the
// token, or the product over its turn or sequence, and no c.
//
// Sums are in double. Micro-batches of one minibatch add up: their losses, gradients and stats are
// those of the whole, because the counts come from outside.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/enum_names.h"
#include "kernels/ops/loss_terms.h"
#include "trainer/loss/aggregation.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/distillation.h"
#include "trainer/loss/imitation.h"
#include "trainer/loss/kl_estimator.h"
#include "trainer/loss/surrogate.h"

namespace tailrace {

constexpr auto enum_names(RatioUnit) {
  using enum RatioUnit;
  return name_table<RatioUnit>({{kToken, "token"},
                                {kTurn, "turn"},
                                {kSequence, "sequence"},
                                {kSequenceToken, "sequence_token"}});
}

struct PolicyLossConfig {
  RatioUnit ratio = RatioUnit::kToken;
  SurrogateConfig surrogate;
  CorrectionOptions correction;
  AggregationConfig aggregation;
  KlOptions kl;
  double entropy_coef = 0;
  ImitationOptions imitation = {};
  DistillOptions distill = {};
};

// All [tokens]. The tokens of a sequence are consecutive, those of a turn within it too. A sequence
// is a segment of a trajectory: most have one.
struct PolicyLossInput {
  std::span<const float> logprob;            // l: current weights
  std::span<const float> old_logprob;        // l_old: weights at the start of the step
  std::span<const float> behaviour_logprob;  // l_inf: recorded when the token was sampled
  std::span<const float> ref_logprob;        // l_ref; empty: no reference policy
  std::span<const float> entropy;            // H; may be empty when entropy_coef is 0
  std::span<const float> advantage;
  std::span<const uint8_t> mask;  // 0: the token changes nothing, whatever its other values are
  std::span<const int32_t> sequence;
  std::span<const int32_t> turn;
  std::span<const int32_t> trajectory;
  // 1: the reward of the token's trajectory is above 0; may be empty unless the surrogate
  // splits_by_reward(), or there is imitation.
  std::span<const uint8_t> positive = {};
};

// Sums and extremes over trained tokens, from the same intermediates as the loss.
struct PolicyLossStats {
  int64_t tokens = 0;
  int64_t clipped_low = 0, clipped_high = 0, dual_clipped = 0;
  int64_t clamped = 0;          // log-ratios and the like cut at kMaxLogRatio
  int64_t correction_cut = 0;   // weights cut by the cap, or rejected
  int64_t sequence_masked = 0;  // tokens without loss by CorrectionOptions::sequence_mask
  double ratio_min = 1, ratio_max = 1;
  double correction_sum = 0, correction_max = 0;
  double old_minus_new_sum = 0;  // l_old - l
  double drift_k3_sum = 0;       // k3 of (l_old, l): KL(old || new)
  double mismatch_k3_sum = 0;    // k3 of (l_inf, l_old): KL(behaviour || old)
  double entropy_sum = 0;

  void add(const PolicyLossStats& other);
};

struct PolicyLossResult {
  double loss = 0;
  double policy_term = 0;     // aggregated surrogate with correction
  double kl_term = 0;         // aggregated, before its coefficient; 0 without a target
  double entropy_term = 0;    // aggregated, before its coefficient
  double imitation_term = 0;  // the same
  PolicyLossStats stats;

  void add(const PolicyLossResult& other);  // another part of the same minibatch
};

// The loss that these terms make.
double total_loss(const PolicyLossConfig& config, const PolicyLossResult& terms);

// The weights of each token before the current weights have scored it: a and c, [tokens], 0 where
// the mask is. Returns the stats of c. Reads neither `logprob` nor `entropy`.
PolicyLossStats token_weights(const PolicyLossConfig& config, const PolicyLossInput& input,
                              const LossCounts& counts, std::span<double> weight,
                              std::span<double> correction);

// Writes dL/dl to dlogprob [tokens] and dL/dH to dentropy [tokens] (may be empty when entropy_coef
// is 0); both are 0 where the mask is.
PolicyLossResult policy_loss(const PolicyLossConfig& config, const PolicyLossInput& input,
                             const LossCounts& counts, std::span<float> dlogprob,
                             std::span<float> dentropy);

}  // namespace tailrace
