// A reward of a library (tailrace/reward.h) in this process, as a Verifier.
//
// An object of the library's is used by one thread at a time: there are as many as scores at once.
#pragma once

#include <memory>

#include "reward/verifier.h"
#include "sandbox/plugin/library.h"

namespace tailrace {

// `settings` as complete_settings() gives them. Throws UserError: the library refuses them.
std::unique_ptr<Verifier> make_plugin_verifier(
    std::shared_ptr<const sandbox::PluginLibrary> library,
    const sandbox::PluginLibrary::RewardEntry& entry, const sandbox::EnvironmentSettings& settings);

}  // namespace tailrace
