// The names of the presets of `algo`: ours, other spellings of them, and the names of algorithms of
// other frameworks that Tailrace does not have.
//
// Thread: any; constants.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace {

// Values of all axes that belong together: a row of presets.cc, with its paper.
enum class AlgoPreset : uint8_t {
  kDefault,
  kPpo,                  // 1707.06347 with 1506.02438 and a value head
  kGrpo,                 // DeepSeekMath, 2402.03300
  kDrGrpo,               // 2503.20783
  kDapo,                 // 2503.14476
  kRloo,                 // 2402.14740
  kReinforcePp,          // REINFORCE++, 2501.03262
  kReinforcePpBaseline,  // its form for groups
  kRemax,                // 2310.10505
  kLitePpo,              // 2508.08221
  kGspo,                 // 2507.18071
  kGspoToken,            // the same, with an advantage for each token
  kCispo,                // MiniMax-M1, 2506.13585
  kTopr,                 // 2503.14286, tapered by token; by segment with ratio = sequence
  kKimi,                 // Kimi k1.5, 2501.12599
  kSapo,                 // Soft Adaptive Policy Optimization (Qwen), 2511.20347
  kDecoupledPpo,         // AReaL, 2505.24298
  kIcePop,               // Ring-1T, 2510.18855
  kIpa,                  // ROME, 2512.24873
  kGigpo,                // 2505.10978
  kTurningPoint,         // 2602.06422
};
constexpr auto enum_names(AlgoPreset) {
  using enum AlgoPreset;
  return name_table<AlgoPreset>({{kDefault, "default"},
                                 {kPpo, "ppo"},
                                 {kGrpo, "grpo"},
                                 {kDrGrpo, "dr_grpo"},
                                 {kDapo, "dapo"},
                                 {kRloo, "rloo"},
                                 {kReinforcePp, "reinforce_pp"},
                                 {kReinforcePpBaseline, "reinforce_pp_baseline"},
                                 {kRemax, "remax"},
                                 {kLitePpo, "lite_ppo"},
                                 {kGspo, "gspo"},
                                 {kGspoToken, "gspo_token"},
                                 {kCispo, "cispo"},
                                 {kTopr, "topr"},
                                 {kKimi, "kimi"},
                                 {kSapo, "sapo"},
                                 {kDecoupledPpo, "decoupled_ppo"},
                                 {kIcePop, "icepop"},
                                 {kIpa, "ipa"},
                                 {kGigpo, "gigpo"},
                                 {kTurningPoint, "turning_point"}});
}

// The OptionInfo::aliases and OptionInfo::strangers of `algo.name`.
std::span<const OptionInfo::Alias> preset_aliases();
std::span<const OptionInfo::Stranger> preset_strangers();

}  // namespace tailrace
