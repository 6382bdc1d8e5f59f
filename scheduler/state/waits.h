// The waits of a run, in a line for a person: the watchdog logs it when nothing has happened for a
// while.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// The wait for a policy whose trainer still reads its model, or trains on supervised rows.
inline constexpr std::string_view kNoVersionYet = "the trainer has not published version 0 yet";

// "version 3; 4 of 16 groups ready; 12 samples run at rollout-0 (8), rollout-1 (4), the oldest for
// 31 s; 3 wait for a reward worker". `now`: of the same clock as the state's times.
std::string describe_waits(const State& state, Time now);

// The same in its parts.
std::vector<std::string> waits_of(const State& state, Time now);

}  // namespace tailrace::scheduler
