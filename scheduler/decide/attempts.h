// Members and their leases (law 6): how an attempt ends, what is tried again, and what is fenced.
//
// A member that reaches a final phase, and completes its group with that, is appended to
// Context::settled; what becomes of the group is for rounds and evaluation, once the event has been
// applied.
#pragma once

#include <string>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on(Context& context, const AttemptResult& result);
void on(Context& context, const Reward& reward);
void on(Context& context, const TurnsStored& event);

// group_size of its members have a reward, or all are settled.
bool complete(const Config& config, const Task& task);

// The work of a member of `task` goes to `lease.worker`, which is `worker` and hears of it.
void begin_lease(Context& context, const WorkId& work, const Task& task, Worker& worker,
                 Lease lease);

// Takes an attempt from its worker, which is told; the member runs nowhere then. Returns its lease.
Lease take_back(Context& context, const WorkId& work);

// The member's next attempt begins anew.
void drop_prefix(Context& context, const WorkId& work, Member& member);

// Everything leased to this worker is void, and counts as lost, or as given back by one that said
// goodbye (law 6.1). Returns how many leases there were.
enum class Leaving { kLost, kGoodbye };
int64_t end_leases(Context& context, const WorkerId& worker, Leaving how);

// Everybody may be tried again at once: a person has looked.
void forget_rests(State& state);

// Says again what a worker holds: it has begun a session, or the scheduler has.
void tell_leases(Context& context, const WorkerId& worker);

// Deadlines that have passed, of leases and of retries.
void expire_leases(Context& context);

// Aborts every lease; the members wait again. For a stop.
void abort_all(Context& context);

// The task's members want no work any more: leases are aborted, queues forget them.
void void_members(Context& context, Lane lane, const TaskId& id, const Task& task);

// Drops members of a complete group that are not settled: they are not needed any more.
void drop_surplus_members(Context& context, Lane lane, const TaskId& id, Task& task);

// Its sample is gone from the store: it waits to be sampled again, by the same random numbers.
void lose_sample(Context& context, const WorkId& work);

// Nobody needs the members' bodies any more.
void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task);

}  // namespace tailrace::scheduler
