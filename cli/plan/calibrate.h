// Measures on this machine what the parts of a run cost: its trainer, the publication of its
// weights, its rollout workers, their episodes. The parts are those that the run would have (the
// trainer's step, the engine, the stage of weights, the runner of episodes), with its threads and
// dtypes, over its own policy. What they do
// not have is measured by a pilot (pilot.h). It takes seconds for small policies and about a minute
// for one of half a billion parameters, and as much memory as the run.
//
// Thread: occupies the caller's, and starts those of the run's workers.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "cli/plan/costs.h"
#include "cli/plan/local_run.h"

namespace tailrace {

struct Calibration {
  MachineCosts costs;
  EpisodeSource episodes;
  std::string source;  // where they come from, for a person; empty: they were known
};

// `run`: local_run(). `known`: the episodes, by which batches and lengths are chosen; null: the
// policy plays some here, where that does not take too long, else those of
// SimulatedEpisodesSection are drawn. A policy that the config creates has no experience: its
// episodes are as long as those of random weights. `program`: the tailrace binary, for the pilot.
// `folder`: an empty one on a disk, for files that are the caller's to remove. `say` gets a line
// for what takes time. Throws UserError as a launch does.
Calibration calibrate(const ResolvedRun& run, const Registries& registries,
                      const EpisodeSource& known, const std::filesystem::path& program,
                      const std::filesystem::path& folder,
                      const std::function<void(const std::string&)>& say);

}  // namespace tailrace
