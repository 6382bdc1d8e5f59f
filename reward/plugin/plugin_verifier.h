// A reward of a library (tailrace/reward.h) in this process, as a Verifier.
//
// An object of the library's is used by one thread at a time: there are as many as scores at once.
#pragma once

#include <memory>
#include <string>

#include "reward/verifier.h"
#include "sandbox/plugin/used_library.h"

namespace tailrace {

// `settings` as complete_settings() gives them. The library is loaded with the first score.
std::unique_ptr<Verifier> make_plugin_verifier(std::shared_ptr<sandbox::UsedLibrary> library,
                                               const std::string& name,
                                               const sandbox::EnvironmentSettings& settings);

}  // namespace tailrace
