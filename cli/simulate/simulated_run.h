// Plays a simulation and says what came of it; leaves a run directory for `tailrace report` where
// one is wanted.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/simulate/simulation.h"
#include "cli/view/worker_use.h"
#include "core/run/run_directory.h"
#include "scheduler/simulator/summary.h"
#include "scheduler/simulator/world.h"

namespace tailrace {

struct SimulatedRun {
  simulator::World::Stop stop = simulator::World::Stop::kEnded;
  std::string halted;                            // why, of kHalted
  std::optional<scheduler::RunEnd::Reason> end;  // of kEnded
  double seconds = 0;                            // of virtual time
  std::vector<simulator::StepRecord> steps;
  simulator::World::Totals totals;
  // Attempts that failed (of environments or verifiers) or were lost, and samples that no step
  // trained.
  int64_t failed = 0, lost = 0, discarded = 0;
  int64_t untrained_tokens() const;  // decoded, and not in a step
  UseShares rollout{}, reward{}, trainer{};

  simulator::RunSummary summary() const { return simulator::summary_of(steps); }
};

// Where a run directory goes, and how much into it (scheduler.timeline_rows).
struct SimulatedFiles {
  RunPaths paths;
  int64_t timeline_rows = 0;
};

// Throws UserError where the files cannot be written. `progress` is called now and then, with the
// virtual time and the steps so far.
SimulatedRun simulate(const Simulation& simulation, const std::optional<SimulatedFiles>& files,
                      const std::function<void(double seconds, int64_t steps)>& progress = {});

}  // namespace tailrace
