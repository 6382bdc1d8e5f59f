// The results of a plan, for a person and as JSON.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>

#include "cli/plan/planned_run.h"
#include "cli/prepare/plan.h"

namespace tailrace {

std::string planned_text(const PlannedRun& planned);

// Of the memory alone: {"memory": .., "fit": ..}.
std::string memory_json(const Plan& memory, const std::optional<CardFit>& fit);

// One object: {"memory": .., "step": .., "modes": .., ..}. `memory`: where it is known.
std::string planned_json(const std::optional<Plan>& memory, const PlannedRun& planned);

}  // namespace tailrace
