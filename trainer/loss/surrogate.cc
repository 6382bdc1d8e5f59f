#include "trainer/loss/surrogate.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

SurrogateTerm ppo_clip(const SurrogateConfig& config, const SurrogateInput& in) {
  double ratio = std::exp(in.log_ratio), advantage = in.advantage;
  double plain = -ratio * advantage;
  double clipped = -std::clamp(ratio, 1 - config.clip_low, 1 + config.clip_high) * advantage;
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
  if (config.clip_c > 0 && advantage < 0 && term.value > -config.clip_c * advantage) {
    term.value = -config.clip_c * advantage;
    term.d_log_ratio = 0;
    term.dual_clipped = true;
  }
  return term;
}

// -weight A l. Detached: the gradient goes through the log-probability alone.
SurrogateTerm weighted_logprob(double weight, const SurrogateInput& in) {
  return {.value = -weight * in.advantage * in.logprob, .d_logprob = -weight * in.advantage};
}

SurrogateTerm cispo(const SurrogateConfig& config, const SurrogateInput& in) {
  double ratio = std::exp(in.log_ratio), bound = 1 + config.clip_high;
  // A token beyond the bound still learns, with a bounded weight.
  SurrogateTerm term = weighted_logprob(std::min(ratio, bound), in);
  term.clipped_high = ratio > bound;
  return term;
}

// A success teaches whoever wrote it. A failure is pushed down only as far as the policy still
// writes it: without the taper that push has no bottom.
SurrogateTerm tapered(double log_weight, const SurrogateInput& in) {
  if (in.positive) return weighted_logprob(1, in);
  SurrogateTerm term = weighted_logprob(std::exp(std::min(log_weight, 0.0)), in);
  term.clipped_high = log_weight > 0;
  return term;
}

SurrogateTerm kimi(const SurrogateConfig& config, const SurrogateInput& in) {
  SurrogateTerm term = weighted_logprob(1, in);
  term.value += config.drift_coef / 2 * in.drift * in.drift;
  term.d_logprob += config.drift_coef * in.drift;
  return term;
}

SurrogateTerm sapo(const SurrogateConfig& config, const SurrogateInput& in) {
  const double ratio = std::exp(in.log_ratio);
  const double tau = in.advantage > 0 ? config.tau_pos : config.tau_neg;
  const double p = 1 / (1 + std::exp(-tau * (ratio - 1)));
  // d/dr of 4 / tau sigmoid(tau (r - 1)) is 4 p (1 - p): 1 at r = 1, less on both sides.
  return {.value = -4 / tau * p * in.advantage,
          .d_log_ratio = -4 * p * (1 - p) * ratio * in.advantage};
}

}  // namespace

bool weighs_behaviour(SurrogateKind kind) { return kind == SurrogateKind::kTopr; }

bool splits_by_reward(SurrogateKind kind) {
  return kind == SurrogateKind::kTopr || kind == SurrogateKind::kIpa;
}

SurrogateTerm surrogate(const SurrogateConfig& config, const SurrogateInput& in) {
  switch (config.kind) {
    case SurrogateKind::kPpoClip:
      return ppo_clip(config, in);
    case SurrogateKind::kCispo:
      return cispo(config, in);
    case SurrogateKind::kTopr:
      return tapered(in.log_importance, in);
    case SurrogateKind::kReinforce:
      return weighted_logprob(1, in);
    case SurrogateKind::kKimi:
      return kimi(config, in);
    case SurrogateKind::kSapo:
      return sapo(config, in);
    case SurrogateKind::kIpa:
      return tapered(in.log_ratio, in);
  }
  TR_CHECK(false, "surrogate kind {}", static_cast<int>(config.kind));
  return {};
}

}  // namespace tailrace
