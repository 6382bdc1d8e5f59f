// Axis "surrogate" of the policy loss: what a token, or a unit of tokens that share one ratio,
// contributes. One function; a new algorithm is a new kind.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/base/options.h"

namespace tailrace {

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
constexpr auto enum_names(SurrogateKind) {
  using enum SurrogateKind;
  return name_table<SurrogateKind>({{kPpoClip, "ppo_clip"},
                                    {kCispo, "cispo"},
                                    {kTopr, "topr"},
                                    {kReinforce, "reinforce"},
                                    {kKimi, "kimi"},
                                    {kSapo, "sapo"},
                                    {kIpa, "ipa"}});
}

// Whether it weighs by u, against what sampled, and not by r, against the weights that the step
// starts from. Its weight corrects for stale tokens then, and another correction would count twice.
bool weighs_behaviour(SurrogateKind kind);

// Whether it treats failures otherwise than successes: by the trajectory's reward, not the sign of
// its advantage.
bool splits_by_reward(SurrogateKind kind);

// Keys of the section `algo` itself: surrogate, clip_low, ...
struct SurrogateConfig {
  SurrogateKind kind = SurrogateKind::kPpoClip;
  double clip_low = 0.2, clip_high = 0.28;
  double clip_c = 0;                     // 0: off
  double drift_coef = 0.1;               // tau of kKimi
  double tau_pos = 1.0, tau_neg = 1.05;  // of kSapo, by the sign of A

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: the full key of theirs ("algo"). Throws UserError with the
// key.
void validate(const SurrogateConfig& options, std::string_view section);

// Of a token. What a unit shares are the two ratios and, as part of a trajectory, `positive`.
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

SurrogateTerm surrogate(const SurrogateConfig& config, const SurrogateInput& in);

}  // namespace tailrace
