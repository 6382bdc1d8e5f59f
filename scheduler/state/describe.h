// One line for each event and action: log lines, failing tests, golden transcripts.
#pragma once

#include <string>

#include "scheduler/state/action.h"
#include "scheduler/state/event.h"

namespace tailrace::scheduler {

std::string describe(const Event& event);    // "published v3 9f2c", "tick"
std::string describe(const Action& action);  // "grant rollout-0 policy=0 ... attempt=1 v3"

}  // namespace tailrace::scheduler
