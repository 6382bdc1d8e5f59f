// A run before it runs: simulated with its own law, on costs that are measured here or on hardware
// that a file describes; in its own mode, in the others, and in other splits of the devices.
//
// Thread: any; what is measured occupies the caller's, and starts those of the run's workers.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "cli/plan/card_fit.h"
#include "cli/plan/costs.h"
#include "cli/plan/local_run.h"
#include "scheduler/state/mode.h"

namespace tailrace {

struct PlannedMode {
  SimulatedMode simulated;
  double step = 0;  // seconds, median
  double eta = 0;   // of all steps of the run
  double staleness = 0;
  double device_hours = 0, cost = 0;  // of all steps, and what comes before and after them
};

struct PlannedRun {
  int64_t steps = 0;                         // of the run, at most
  std::string episodes;                      // where they come from
  std::optional<MachineCosts> machine = {};  // none: the hardware file has them
  std::vector<PlannedMode> modes = {};       // in the order of their names
  size_t own = 0, best = 0;                  // of `modes`
  std::vector<std::pair<std::string, std::string>> refused = {};  // modes, and why
  std::vector<PlannedMode> splits = {};  // of the best mode; the first one is the config's
  size_t best_split = 0;
  // On described hardware: whether it fits there, where the policy is known; why it cannot be run
  // so.
  std::optional<CardFit> fit = {};
  std::vector<std::string> gaps = {};
  // Without staleness, its trainer and worker by turns on one card: the time of all steps, and
  // cost.
  std::optional<PlannedMode> in_turn = {};

  // Of all that have one device for the trainer, the first to end; null: none has.
  const PlannedMode* best_with_one_trainer() const;
  const PlannedMode& chosen() const { return splits.empty() ? modes[best] : splits[best_split]; }
};

struct PlanRequest {
  const ResolvedRun& run;
  const Registries& registries;
  int64_t steps = 0;
  std::filesystem::path like = {};     // a run whose episodes are played again; empty: none
  std::filesystem::path program = {};  // the tailrace binary
  // `run` in this mode. Throws UserError where they do not fit it.
  std::function<ResolvedRun(scheduler::ModeName)> with_mode = {};  // empty: only its own
  std::function<void(const std::string&)> say = {};                // what takes time
  bool tries_turns = false;  // of one worker and one trainer: on one card, too
};

// Measured here, in a folder of its own that is gone afterwards. Throws UserError.
PlannedRun plan_here(const PlanRequest& request);
// On the hardware of options.simulate. Throws UserError.
PlannedRun plan_on_hardware(const PlanRequest& request);

}  // namespace tailrace
