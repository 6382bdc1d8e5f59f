// An environment of a library in a process of its own, which is there from reset() on.
//
// Thread: one at a time for each instance.
#pragma once

#include <memory>
#include <string>

#include "core/base/time.h"
#include "sandbox/environment_source.h"
#include "sandbox/plugin/hosted_library.h"

namespace tailrace::sandbox {

// The facts of an environment of the library about itself, from a process that is made for it.
// `settings` as complete_settings() gives them, here and below. Throws UserError.
EnvironmentInfo ask_info(const HostedLibrary& library, const std::string& name,
                         const EnvironmentSettings& settings, Time timeout);
// Makes a reward, to see whether it takes its settings. Throws UserError.
void prove_reward(const HostedLibrary& library, const std::string& name,
                  const EnvironmentSettings& settings, Time timeout);

// Each call has `timeout`.
std::unique_ptr<Environment> make_hosted_environment(std::shared_ptr<const HostedLibrary> library,
                                                     EnvironmentInfo info,
                                                     const EnvironmentSettings& settings,
                                                     Time timeout);
std::unique_ptr<RemoteEnvironment> make_remote_environment(
    std::shared_ptr<const HostedLibrary> library, const std::string& name,
    const EnvironmentSettings& settings, Time timeout);

}  // namespace tailrace::sandbox
