// What a run costs here, as a person reads it and as JSON.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cli/plan/costs.h"
#include "cli/plan/predict.h"
#include "cli/run/options.h"
#include "cli/run/plan.h"
#include "cli/run/registries.h"

namespace tailrace {

struct RunTime {
  MachineCosts costs;
  StepTime step = {};               // the mean
  std::vector<StepTime> each = {};  // of the steps that the lengths are known of
  std::string lengths;              // where they come from
  int64_t steps = 0;                // of the run, at most
  double seconds() const { return static_cast<double>(steps) * step.step; }
};

// Calibrates, in a folder of its own that is gone afterwards. `like`: a run whose lengths are
// taken; empty: episodes are played. `program`: the tailrace binary. Throws UserError.
RunTime plan_time(const RunOptions& options, const Registries& registries, int64_t steps,
                  const std::filesystem::path& like, const std::filesystem::path& program,
                  const std::function<void(const std::string&)>& say);

std::string format_time(const RunTime& time);
// One object: {"memory": .., "step": .., "machine": .., ..}.
std::string time_json(const Plan& plan, const RunTime& time);

}  // namespace tailrace
