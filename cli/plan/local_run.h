// The run on this machine as a simulation: the workers that a launch starts here, on costs that
// were measured.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/plan/costs.h"
#include "cli/run/options.h"
#include "cli/run/simulation.h"
#include "cli/simulate/simulated_text.h"
#include "sandbox/registry.h"

namespace tailrace {

using EpisodeSource = std::shared_ptr<const simulator::EpisodeSource>;

// `options` with this machine in the place of described hardware. `like`: a run
// whose episodes are played again; empty: none.
RunOptions local_options(const RunOptions& options, const std::filesystem::path& like);

// The first `steps` of a run with local_options().
SimulatedMode simulate_here(const RunOptions& options,
                            const sandbox::EnvironmentRegistry& environments,
                            const MachineCosts& costs, const EpisodeSource& episodes,
                            int64_t steps);

// The episodes of a step, in the order of their groups.
std::vector<PlannedEpisode> episodes_of_step(const RunOptions& options,
                                             const simulator::EpisodeSource& episodes);

}  // namespace tailrace
