// Members and their leases: how an attempt ends, what is tried again, and what is fenced.
//
// A member that reaches a final phase is appended to Context::settled; what becomes of its group is
// for rounds and evaluation, once the event has been applied.
#pragma once

#include <string>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on_result(Context& context, const AttemptResult& result);
void on_reward(Context& context, const Reward& reward);

// Everything leased to this worker is void. `lost`: its process is gone, which counts against the
// members' bounds and once for the breaker; otherwise (a connection made anew) it is only given
// again.
void void_worker_leases(Context& context, const WorkerId& worker, bool lost);

// Deadlines that have passed.
void expire_leases(Context& context);

// Aborts every lease; the members wait again. For a stop.
void abort_all(Context& context);

// The task's members want no work any more: leases are aborted, queues forget them.
void void_members(Context& context, Lane lane, const TaskId& id, const Task& task);

// Nobody needs the members' bodies any more.
void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task);

// The lease's messages, for a first grant and for one given again after a restart.
Action lease_action(const State& state, const WorkId& work, const Lease& lease);

}  // namespace tailrace::scheduler
