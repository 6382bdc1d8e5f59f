// The shape of the policy that a run trains, as its files and its config say.
//
// Thread: any.
#pragma once

#include "cli/inputs/resolved_run.h"
#include "core/model/model_config.h"
#include "sandbox/registry.h"

namespace tailrace {

// Reads model.path's config, or makes the one of model.create. Throws UserError where policy and
// config do not fit each other.
ModelConfig planned_model(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments);

// The adapter that the run trains; without a rank: none. Throws UserError about lora.adapter.
Lora lora_of(const RunOptions& options);

}  // namespace tailrace
