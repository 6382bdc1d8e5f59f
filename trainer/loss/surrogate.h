// Axis "surrogate" of the policy loss: what a token, or a unit of tokens that share one ratio,
// contributes for a log-ratio and an advantage. One function; a new algorithm is a new kind.
#pragma once

#include <cstdint>

#include "core/base/enum_names.h"

namespace tailrace {

enum class SurrogateKind : uint8_t {
  kPpoClip,  // max(-r A, -clip(r, 1 - low, 1 + high) A), dual clip for A < 0   (1707.06347)
  kCispo,    // -sg(min(r, 1 + high)) A l   (2506.13585)
};
constexpr auto enum_names(SurrogateKind) {
  using enum SurrogateKind;
  return name_table<SurrogateKind>({{kPpoClip, "ppo_clip"}, {kCispo, "cispo"}});
}

struct SurrogateConfig {
  SurrogateKind kind = SurrogateKind::kPpoClip;
  double clip_low = 0.2, clip_high = 0.28;
  double clip_c = 0;  // 0: off
};

struct SurrogateTerm {
  double value = 0;
  double d_log_ratio = 0;  // derivative through the ratio, which a unit's tokens share
  double d_logprob = 0;    // derivative through the token's own log-probability
  bool clipped_low = false, clipped_high = false;  // the clipped value is strictly the larger one
  bool dual_clipped = false;
};

SurrogateTerm surrogate(const SurrogateConfig& config, double log_ratio, double logprob,
                        double advantage);

}  // namespace tailrace
