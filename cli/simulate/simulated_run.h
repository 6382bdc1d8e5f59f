// Plays a simulation and says what came of it; leaves a run directory for `tailrace report` where
// one is wanted.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/simulation.h"
#include "cli/view/worker_use.h"
#include "core/base/log.h"
#include "core/base/run_directory.h"
#include "scheduler/simulator/world.h"

namespace tailrace {

struct SimulatedRun {
  simulator::World::Stop stop = simulator::World::Stop::kEnded;
  std::string halted;  // why, of kHalted
  double seconds = 0;  // of virtual time
  std::vector<simulator::StepRecord> steps;
  simulator::World::Totals totals;
  // Attempts that failed (of environments or verifiers) or were lost, and samples that no step
  // trained.
  int64_t failed = 0, lost = 0, discarded = 0;
  UseShares rollout{}, reward{}, trainer{};

  double seconds_of_steps() const;  // from version 0 to the last one
};

// Where a run directory goes, and how much into it (scheduler.timeline_rows).
struct SimulatedFiles {
  RunPaths paths;
  int64_t timeline_rows = 0;
};

// Throws UserError where the files cannot be written. `log`: for warnings about them.
SimulatedRun simulate(const Simulation& simulation, const std::optional<SimulatedFiles>& files,
                      Log& log);

}  // namespace tailrace
