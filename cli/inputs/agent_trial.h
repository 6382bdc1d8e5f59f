// Agents are tried once before a run, as rewards are: whatever keeps a program from its first call
// (a package that is missing, a key that a row lacks) is told at once, in its own words, and not by
// the run whose episodes all fail.
//
// Thread: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "core/base/time.h"
#include "sandbox/registry.h"

namespace tailrace {

// A program that thinks so long before it asks is believed.
inline constexpr Time kTrialPatience = std::chrono::seconds(30);

// Has each agent of a run begin the episode of its first task, up to its first call, which nobody
// answers: there is no policy yet. Throws UserError about the key of one that ends before it has
// asked. Returns a note for each that did neither in time. Where workers of other machines play,
// nothing is tried.
std::vector<std::string> try_agents(const ResolvedRun& run,
                                    const sandbox::EnvironmentRegistry& environments,
                                    Time patience = kTrialPatience);

}  // namespace tailrace
