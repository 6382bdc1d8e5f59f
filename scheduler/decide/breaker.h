// Stops a run whose attempts keep failing for one cause, and names the cause.
#pragma once

#include <string>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// An attempt (or verification) ended with `outcome`. Halts when more than the configured share of a
// full window failed for one cause. A dead worker counts once, however many leases it held.
void record_outcome(Context& context, Outcome outcome, const std::string& reason);

// Once halted, nothing is granted until a restart.
void halt(Context& context, std::string reason);

}  // namespace tailrace::scheduler
