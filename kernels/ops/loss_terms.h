// The terms that a token adds to the policy loss, in double: the formulas that the loss of the CPU
// (trainer/loss/policy_loss.cc) and the kernel (kernels/cuda/policy_gradient.cu) both compile. The
// axes that they belong to are described in trainer/loss.
//
// Thread: any; pure functions.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define TR_HOST_DEVICE __host__ __device__
#else
#define TR_HOST_DEVICE
#endif

namespace tailrace {

// Log-ratios, correction exponents and KL arguments are cut to [-kMaxLogRatio, kMaxLogRatio];
// beyond it there is no gradient, and the event is counted.
constexpr double kMaxLogRatio = 20;

struct ClampedLog {
  double value;
  bool cut;
};
TR_HOST_DEVICE inline ClampedLog clamp_log(double x) {
  const double value = x < -kMaxLogRatio ? -kMaxLogRatio : kMaxLogRatio < x ? kMaxLogRatio : x;
  return {value, value != x};
}

// The tokens that share one probability ratio.
enum class RatioUnit : uint8_t {
  kToken,
  kTurn,
  kSequence,
  kSequenceToken,  // the sequence's, through which each token has its own gradient (GSPO-token)
};

enum class SurrogateKind : uint8_t {
  kPpoClip,  // max(-r A, -clip(r, 1 - low, 1 + high) A), dual clip for A < 0   (1707.06347)
  kCispo,    // -sg(min(r, 1 + high)) A l   (2506.13585)
  // -A l where the trajectory's reward is above 0, else -sg(min(u, 1)) A l   (2503.14286)
  kTopr,
  kReinforce,  // -A l
  kKimi,       // -A l + tau / 2 (l - l_old)^2   (2501.12599)
  kSapo,       // -4 / tau sigmoid(tau (r - 1)) A, tau of the sign of A   (2511.20347)
  kIpa,        // as kTopr, with r in place of u   (2512.24873)
};

struct SurrogateRule {
  SurrogateKind kind = SurrogateKind::kPpoClip;
  double clip_low = 0, clip_high = 0;
  double clip_c = 0;                // 0: off
  double drift_coef = 0;            // tau of kKimi
  double tau_pos = 1, tau_neg = 1;  // of kSapo, by the sign of A
};

// The values of a token. A unit shares two ratios and, as part of a trajectory, `positive`.
struct SurrogateInput {
  double log_ratio = 0;       // log r: mean of l - l_old over the unit
  double log_importance = 0;  // log u: sum of l - l_inf over the unit; see weighs_behaviour()
  double logprob = 0;         // l
  double drift = 0;           // l - l_old of the token itself
  double advantage = 0;       // A
  bool positive = false;      // the trajectory's reward, not its advantage, is above 0
};

struct SurrogateTerm {
  double value = 0;
  double d_log_ratio = 0;  // derivative through the ratio, which a unit's tokens share
  double d_logprob = 0;    // derivative through the token's own log-probability
  bool clipped_low = false, clipped_high = false;  // the clipped value is strictly the larger one
  bool dual_clipped = false;
};

// Whether it weighs by u, against what sampled, and not by r, against the weights that the step
// starts from. Its weight corrects for stale tokens then, and another correction would count twice.
TR_HOST_DEVICE constexpr bool weighs_behaviour(SurrogateKind kind) {
  return kind == SurrogateKind::kTopr;
}

// Whether it treats failures otherwise than successes: by the trajectory's reward, not the sign of
// its advantage.
TR_HOST_DEVICE constexpr bool splits_by_reward(SurrogateKind kind) {
  return kind == SurrogateKind::kTopr || kind == SurrogateKind::kIpa;
}

namespace loss_terms {

TR_HOST_DEVICE inline SurrogateTerm ppo_clip(const SurrogateRule& rule, const SurrogateInput& in) {
  const double ratio = exp(in.log_ratio), advantage = in.advantage;
  const double low = 1 - rule.clip_low, high = 1 + rule.clip_high;
  const double plain = -ratio * advantage;
  const double clipped = -(ratio < low ? low : high < ratio ? high : ratio) * advantage;
  SurrogateTerm term;
  // In a step's first update every ratio is exactly 1 (design rule 3), both are equal, and the
  // gradient must flow.
  if (clipped > plain) {  // a tie counts as active
    term.value = clipped;
    term.clipped_low = ratio < 1;
    term.clipped_high = ratio > 1;
  } else {
    term.value = plain;
    term.d_log_ratio = plain;  // d(-r A) / d log r = -r A
  }
  // Dual clip (Ye et al. 2020, 1912.09729): with A < 0 a large ratio makes -r A as large as it
  // likes, and the minimum of PPO does not hold it.
  if (rule.clip_c > 0 && advantage < 0 && term.value > -rule.clip_c * advantage) {
    term.value = -rule.clip_c * advantage;
    term.d_log_ratio = 0;
    term.dual_clipped = true;
  }
  return term;
}

// -weight A l. Detached: the gradient goes through the log-probability alone.
TR_HOST_DEVICE inline SurrogateTerm weighted_logprob(double weight, const SurrogateInput& in) {
  SurrogateTerm term;
  term.value = -weight * in.advantage * in.logprob;
  term.d_logprob = -weight * in.advantage;
  return term;
}

TR_HOST_DEVICE inline SurrogateTerm cispo(const SurrogateRule& rule, const SurrogateInput& in) {
  const double ratio = exp(in.log_ratio), bound = 1 + rule.clip_high;
  // A token beyond the bound still learns, with a bounded weight.
  SurrogateTerm term = weighted_logprob(bound < ratio ? bound : ratio, in);
  term.clipped_high = ratio > bound;
  return term;
}

// A success teaches whoever wrote it. A failure is pushed down only as far as the policy still
// writes it: without the taper that push has no bottom.
TR_HOST_DEVICE inline SurrogateTerm tapered(double log_weight, const SurrogateInput& in) {
  if (in.positive) return weighted_logprob(1, in);
  SurrogateTerm term = weighted_logprob(exp(0.0 < log_weight ? 0.0 : log_weight), in);
  term.clipped_high = log_weight > 0;
  return term;
}

TR_HOST_DEVICE inline SurrogateTerm kimi(const SurrogateRule& rule, const SurrogateInput& in) {
  SurrogateTerm term = weighted_logprob(1, in);
  term.value += rule.drift_coef / 2 * in.drift * in.drift;
  term.d_logprob += rule.drift_coef * in.drift;
  return term;
}

TR_HOST_DEVICE inline SurrogateTerm sapo(const SurrogateRule& rule, const SurrogateInput& in) {
  const double ratio = exp(in.log_ratio);
  const double tau = in.advantage > 0 ? rule.tau_pos : rule.tau_neg;
  const double p = 1 / (1 + exp(-tau * (ratio - 1)));
  // d/dr of 4 / tau sigmoid(tau (r - 1)) is 4 p (1 - p): 1 at r = 1, less on both sides.
  SurrogateTerm term;
  term.value = -4 / tau * p * in.advantage;
  term.d_log_ratio = -4 * p * (1 - p) * ratio * in.advantage;
  return term;
}

}  // namespace loss_terms

TR_HOST_DEVICE inline SurrogateTerm surrogate(const SurrogateRule& rule, const SurrogateInput& in) {
  switch (rule.kind) {
    case SurrogateKind::kPpoClip:
      return loss_terms::ppo_clip(rule, in);
    case SurrogateKind::kCispo:
      return loss_terms::cispo(rule, in);
    case SurrogateKind::kTopr:
      return loss_terms::tapered(in.log_importance, in);
    case SurrogateKind::kReinforce:
      return loss_terms::weighted_logprob(1, in);
    case SurrogateKind::kKimi:
      return loss_terms::kimi(rule, in);
    case SurrogateKind::kSapo:
      return loss_terms::sapo(rule, in);
    case SurrogateKind::kIpa:
      return loss_terms::tapered(in.log_ratio, in);
  }
  return {};
}

enum class KlEstimator : uint8_t { kK1, kK2, kK3 };

struct KlTerm {
  double value = 0, d_logprob = 0;
};

// x = log policy - log other:  k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x.
// On-policy the expected gradient of k1 is zero, of k2 that of KL(policy || other), of k3 that of
// KL(other || policy).
TR_HOST_DEVICE inline KlTerm kl_term(KlEstimator estimator, double x) {
  // With x = l - l_other, so d/dl is d/dx: the other policy is fixed (J. Schulman, "Approximating
  // KL divergence", 2020).
  switch (estimator) {
    case KlEstimator::kK1:
      return {x, 1};
    case KlEstimator::kK2:
      return {x * x / 2, x};
    // expm1 keeps the digits near x = 0, where the value is about x^2 / 2.
    case KlEstimator::kK3:
      return {expm1(-x) + x, -expm1(-x)};
  }
  return {};
}

// The term times exp(log_ratio), which is differentiated too.
TR_HOST_DEVICE inline KlTerm times_ratio(const KlTerm& term, double log_ratio) {
  const ClampedLog x = clamp_log(log_ratio);
  const double ratio = exp(x.value);
  return {ratio * term.value, ratio * ((x.cut ? 0 : term.value) + term.d_logprob)};
}

// The meaning of pi(c) of a turn of n tokens in the term of imitation.
enum class ImitationLevel : uint8_t {
  kTokenMean,  // the geometric mean of the tokens' probabilities, whatever n is
  kTurn,       // their product, as the paper has it: of a turn of a hundred tokens it is nearly 0
};

// sum: of the log-probabilities of the turn's tokens, at least one.
TR_HOST_DEVICE inline double turn_probability(ImitationLevel level, double sum, int64_t tokens) {
  return exp(level == ImitationLevel::kTokenMean ? sum / static_cast<double>(tokens) : sum);
}

}  // namespace tailrace
