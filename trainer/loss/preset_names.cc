#include "trainer/loss/preset_names.h"

namespace tailrace {
namespace {

// Other spellings of presets.
constexpr OptionInfo::Alias kPresetAliases[] = {
    {"gae", "ppo"},          // verl
    {"group_norm", "grpo"},  // OpenRLHF
    {"dr-grpo", "dr_grpo"},
    {"drgrpo", "dr_grpo"},
    {"reinforce", "reinforce_pp"},  // OpenRLHF
    {"reinforce++", "reinforce_pp"},
    {"reinforce_plus_plus", "reinforce_pp"},  // verl
    {"reinforce++-baseline", "reinforce_pp_baseline"},
    {"reinforce_baseline", "reinforce_pp_baseline"},            // OpenRLHF
    {"reinforce_plus_plus_baseline", "reinforce_pp_baseline"},  // verl
    {"lite-ppo", "lite_ppo"},
    {"gspo-token", "gspo_token"},
    {"agentic_reinforce", "ipa"},  // ROLL
};

// Names of algorithms in other frameworks.
constexpr OptionInfo::Stranger kPresetStrangers[] = {
    {"bnpo", "BNPO is a mean over tokens. Try algo.loss_agg=token_mean_global."},
    {"dpo",
     "DPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"gmpo", "There is no GMPO. Try gspo, whose ratio is the geometric mean without its clip."},
    {"gpg", "There is no GPG. Try rloo, which also has no clip."},
    {"grpo_passk", "There is no objective for pass@k. Try grpo."},
    {"kto",
     "KTO learns from ratings in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"luspo", "There is no LUSPO. Try gspo."},
    {"opo", "There is no OPO. Try rloo, whose baseline is not weighted by length."},
    {"orpo",
     "ORPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"vapo", "There is no VAPO. Try ppo, with algo.loss_agg=token_mean_global as it has it."},
    {"vespo", "There is no VESPO. Try topr, which also weighs against what sampled."},
};

}  // namespace

std::span<const OptionInfo::Alias> preset_aliases() { return kPresetAliases; }
std::span<const OptionInfo::Stranger> preset_strangers() { return kPresetStrangers; }

}  // namespace tailrace
