// How much of a run is done (law 3.10): what the schedules of a trainer go by. It counts what was
// done, prompts that were filtered or given up included, and no updates that were planned.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// Groups that run, in open rounds and behind those that are full.
int64_t num_running(const Policy& policy, int32_t dataset);

// Prompts of each dataset that need no step any more, or have theirs: launched, and neither queued,
// running nor complete without a batch.
std::vector<int64_t> prompts_used(const Config& config, const Policy& policy);

// The share of the run that is done when that step has been trained, and `used` prompts of each
// dataset are used: that of the steps, or of the data where it ends sooner. [0, 1]; `used` may be
// empty: none is.
double share_done(const Config& config, int64_t step, const std::vector<int64_t>& used);

}  // namespace tailrace::scheduler
