// The run on this machine as a simulation: the workers that a launch starts here, on costs that
// were measured.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "cli/plan/costs.h"
#include "cli/simulate/simulated_text.h"
#include "cli/simulate/simulation.h"
#include "sandbox/registry.h"

namespace tailrace {

using EpisodeSource = std::shared_ptr<const simulator::EpisodeSource>;

// `run` with this machine in the place of described hardware. `like`: a run
// whose episodes are played again; empty: none.
ResolvedRun local_run(const ResolvedRun& run, const std::filesystem::path& like);

// The first `steps` of a local_run().
SimulatedMode simulate_here(const ResolvedRun& run,
                            const sandbox::EnvironmentRegistry& environments,
                            const MachineCosts& costs, const EpisodeSource& episodes,
                            int64_t steps);

// The episodes of a step, in the order of their groups.
std::vector<PlannedEpisode> episodes_of_step(const RunOptions& options,
                                             const simulator::EpisodeSource& episodes);

}  // namespace tailrace
