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

SurrogateTerm topr(const SurrogateInput& in) {
  // A success teaches whoever wrote it. A failure is pushed down only as far as the policy still
  // writes it: without the taper that push has no bottom.
  if (in.positive) return weighted_logprob(1, in);
  SurrogateTerm term = weighted_logprob(std::exp(std::min(in.log_importance, 0.0)), in);
  term.clipped_high = in.log_importance > 0;
  return term;
}

}  // namespace

bool weighs_behaviour(SurrogateKind kind) { return kind == SurrogateKind::kTopr; }

SurrogateTerm surrogate(const SurrogateConfig& config, const SurrogateInput& in) {
  switch (config.kind) {
    case SurrogateKind::kPpoClip:
      return ppo_clip(config, in);
    case SurrogateKind::kCispo:
      return cispo(config, in);
    case SurrogateKind::kTopr:
      return topr(in);
  }
  TR_CHECK(false, "surrogate kind {}", static_cast<int>(config.kind));
  return {};
}

}  // namespace tailrace
