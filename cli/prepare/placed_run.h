// A run whose policy is known: its shape, and where the workers of this machine compute it. Whoever
// plans or plays the workers of a run takes this value.
//
// Thread: any, once the backends are provided.
#pragma once

#include <string>

#include "cli/config/device_choice.h"
#include "cli/inputs/resolved_run.h"
#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "core/run/run_directory.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "sandbox/registry.h"

namespace tailrace {

struct PlacedRun {
  ResolvedRun run;
  ModelConfig model = {};
  Elements compute = {};
  ChosenDevice rollout = {};  // of the rollout workers of this machine
  Device trainer = {};        // the same, unless something of its recipe keeps it on the CPU:
  std::string why_trainer_cpu = {};  // "Muon (optim.kind) runs on the CPU alone so far"
  // No step may begin here before an evaluation has ended (evaluates_in_turn()).
  bool evaluates_in_turn = false;
};

// Throws UserError as planned_model(), and about model.device, where that asks for what this
// machine has not, or cannot compute.
PlacedRun place(ResolvedRun run, const sandbox::EnvironmentRegistry& environments);
// The same for a run that is prepared: with the tokenizer that it keeps, whatever has become of
// model.path since.
PlacedRun place(ResolvedRun run, const sandbox::EnvironmentRegistry& environments,
                const RunPaths& paths);
// The same for a policy that is known.
PlacedRun place(ResolvedRun run, ModelConfig model);

// Why the trainer of the run computes on the CPU wherever it is; empty: nothing keeps it there.
std::string why_trainer_on_cpu(const ResolvedRun& run);

}  // namespace tailrace
