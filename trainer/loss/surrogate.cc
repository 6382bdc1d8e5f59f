#include "trainer/loss/surrogate.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

SurrogateTerm ppo_clip(const SurrogateConfig& config, double log_ratio, double advantage) {
  double ratio = std::exp(log_ratio);
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

SurrogateTerm cispo(const SurrogateConfig& config, double log_ratio, double logprob,
                    double advantage) {
  double ratio = std::exp(log_ratio), bound = 1 + config.clip_high;
  // Detached: the gradient goes through the log-probability alone, so a token beyond the bound
  // still learns, with a bounded weight.
  double weight = std::min(ratio, bound);
  SurrogateTerm term;
  term.value = -weight * advantage * logprob;
  term.d_logprob = -weight * advantage;
  term.clipped_high = ratio > bound;
  return term;
}

}  // namespace

SurrogateTerm surrogate(const SurrogateConfig& config, double log_ratio, double logprob,
                        double advantage) {
  switch (config.kind) {
    case SurrogateKind::kPpoClip:
      return ppo_clip(config, log_ratio, advantage);
    case SurrogateKind::kCispo:
      return cispo(config, log_ratio, logprob, advantage);
  }
  TR_CHECK(false, "surrogate kind {}", static_cast<int>(config.kind));
  return {};
}

}  // namespace tailrace
