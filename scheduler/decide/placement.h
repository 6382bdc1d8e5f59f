// Placement of work: installs, grants and verifications, to the least loaded worker that may.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on(Context& context, const Staged& event);
void on(Context& context, const StageProgress& event);
void on(Context& context, const Installed& event);
void on(Context& context, const InstallFailed& event);
void on(Context& context, const Stalled& event);

// Installs that took too long.
void expire_installs(Context& context);

// Sends workers to the newest version, and one back to what is evaluated where nobody else can
// sample what is left of it (law 10.1). None while a rollback is replayed: nothing may run on the
// versions in between, and the weights that workers hold come back.
void refresh_workers(Context& context);

// Waiting members to open workers with free slots, evaluation first. Siblings go to one worker when
// it has room: they share the prompt's KV cache.
void grant_waiting(Context& context);
// Grants only the held-out members of evaluations that lag behind the frontier.
void grant_held_out(Context& context);

// Moves the work of workers that stand still to others with room (law 8.6). True: work was moved,
// which may make other installs and grants possible.
[[nodiscard]] bool move_stalled(Context& context);

// Results that need a score to reward workers.
void verify_waiting(Context& context);

}  // namespace tailrace::scheduler
