// Which published weights nobody needs any more, and which payloads nobody fetches (law 9.8).
// decide() alone lets go: the trainer removes what it is told, and nothing else.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Looks again, and lets go what it may. It walks workers and tasks, so it is called where much may
// have changed: at a publication and at a checkpoint.
void release_weights(Context& context, PolicyId id);

// The trainer hears it, once in a session and whenever there is more.
void tell_released(Context& context, PolicyId id, Policy& policy);

}  // namespace tailrace::scheduler
