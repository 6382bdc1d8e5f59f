// Axis "surrogate" of the policy loss: what a token, or a unit of tokens that share one ratio,
// contributes. Its formulas are in kernels/ops/loss_terms.h; a new algorithm is a new kind.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "kernels/ops/loss_terms.h"

namespace tailrace {

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

// The part that the formulas read.
SurrogateRule surrogate_rule(const SurrogateConfig& config);

inline SurrogateTerm surrogate(const SurrogateConfig& config, const SurrogateInput& in) {
  return surrogate(surrogate_rule(config), in);
}

}  // namespace tailrace
