// The scheduler's one function: an event in, actions out, nothing else touched; what it promises is
// docs/scheduler-law.md, cited as "law 3.2". It reads no clock,
// opens no socket and draws no random number, so that whatever drives it gets the same actions for
// the same events: the service, its journal after a restart, a test with a world and time of its
// own.
//
// Idempotent against doubled and late messages: work is named by leases, and what a fenced attempt
// says changes nothing. A trainer's repeated question is answered with the same list.
#pragma once

#include <cstdint>

#include "core/base/time.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// Which law this is. Raised when the same events give other actions or another state than before:
// events of another law cannot be replayed, only snapshots cross it. What raises it, and what
// notices that somebody forgot: law 13.
constexpr uint32_t kLawVersion = 32;

// Applies `event` at `now` (an earlier time than the state's counts as the state's).
[[nodiscard]] Actions decide(State& state, const Event& event, Time now);

}  // namespace tailrace::scheduler
