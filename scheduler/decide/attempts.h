// Members and their leases (law 6): how an attempt ends, what is tried again, and what is fenced.
//
// A member that reaches a final phase is appended to Context::settled; what becomes of its group is
// for rounds and evaluation, once the event has been applied.
#pragma once

#include <string>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on_result(Context& context, const AttemptResult& result);
void on_reward(Context& context, const Reward& reward);

// The member's work goes to `lease.worker`, which hears of it.
void begin_lease(Context& context, const WorkId& work, Lease lease);

// Everything leased to this worker is void: its process is gone. Lost counts against the members'
// bounds, returned (it said goodbye) does not (law 6.5). Both return how many leases there were.
int64_t lose_leases(Context& context, const WorkerId& worker);
int64_t return_leases(Context& context, const WorkerId& worker);

// Says again what a worker holds: it has begun a session, or the scheduler has.
void tell_leases(Context& context, const WorkerId& worker);

// Deadlines that have passed.
void expire_leases(Context& context);

// Aborts every lease; the members wait again. For a stop.
void abort_all(Context& context);

// The task's members want no work any more: leases are aborted, queues forget them.
void void_members(Context& context, Lane lane, const TaskId& id, const Task& task);

// Nobody needs the members' bodies any more.
void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task);

}  // namespace tailrace::scheduler
