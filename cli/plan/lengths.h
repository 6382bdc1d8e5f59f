// How long the episodes of a run are, before it runs.
//
// Thread: any.
#pragma once

#include <vector>

#include "cli/plan/costs.h"
#include "cli/run/options.h"
#include "core/base/run_directory.h"

namespace tailrace {

// Those that a run has recorded, of the steps whose traces it keeps (train.trace_steps). Throws
// UserError where there are none.
PlannedEpisodes recorded_episodes(const RunPaths& run);

// Every episode runs to the limits of the config: the longest step that the run can have.
// `prompt_tokens`: of a prompt, where it is known; 0: half of the context.
PlannedEpisodes longest_episodes(const RunOptions& options, int64_t prompt_tokens);

// `known` cut into steps of `options`, in its order; of few groups one step, in which they are
// repeated, as are the members of a group that has too few.
std::vector<std::vector<PlannedEpisode>> steps_of(const RunOptions& options,
                                                  const PlannedEpisodes& known);

}  // namespace tailrace
