// A reward of a library in processes of its own, as a Verifier. Each score has its budget for a
// deadline; who misses it is killed, and the score is no verdict.
#pragma once

#include <memory>
#include <string>

#include "reward/verifier.h"
#include "sandbox/plugin/used_library.h"

namespace tailrace {

// `settings` as complete_settings() gives them. No process starts before the first score.
std::unique_ptr<Verifier> make_hosted_verifier(std::shared_ptr<sandbox::UsedLibrary> library,
                                               const std::string& name,
                                               const sandbox::EnvironmentSettings& settings);

}  // namespace tailrace
