// Rounds: launching groups within the credit, deciding what a complete group becomes, handing a
// step over.
//
// This is where modes differ. The stop rule is Share::launch_target against target (launch()) and
// the moment a round closes (close_full_rounds()); the tail policy is what closing does with groups
// that still run: under `all` and `wait` there are none.
#pragma once

#include "scheduler/context.h"

namespace tailrace::scheduler {

// Opens a round for whatever credit is free. Nothing before the first publication, beyond the last
// step, or while a rollback is replayed.
void open_rounds(Context& context, PolicyId policy_id, Policy& policy);

// All members of a running task may have ended: accept it, filter it (zero signal), or give it up
// as failed; the last two are replaced from the dataset, which keeps the reservation.
void settle_task(Context& context, Policy& policy, const TaskId& id);

// Answers `wanted`: a batch that was formed before, or a new one once the step is complete and no
// evaluation is open (weights must not move under it).
void hand_over(Context& context, PolicyId policy_id, Policy& policy);

// Takes a launch apart (leases, bodies) and queues the prompt for another one, on newer weights.
void relaunch(Context& context, Policy& policy, const TaskId& id);

// The task ends. Not for a batch that is published: publication does that.
void end_task(Context& context, Policy& policy, const TaskId& id, TaskEnd end);

// No prompt is left to start, and no group waits or runs.
bool exhausted(const State& state, const Policy& policy);

// Prompts of finite data that have neither been launched nor ended.
int64_t unlaunched(const State& state, const Policy& policy);

// Groups whose bodies are gone are launched again; an evaluation is begun anew. A batch that was
// handed over cannot be: its bodies were on disk before the trainer had it.
void on_bodies_lost(Context& context, const BodiesLost& event);

void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task);

}  // namespace tailrace::scheduler
