// Rounds (law 3): launching groups within the credit, and deciding what a complete group becomes.
//
// This is where modes differ (law 5). The stop rule is how many members a group starts
// (members_to_launch) and how many groups a round starts beyond those that it keeps
// (Share::launch_target); the tail policy is what becomes of the groups that still run in a share
// that is full (end_tail in rounds.cc); staleness is judged when a version is published
// (drop_stale) and when a step is handed over (batches.h).
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// How many members a group of this round starts.
int64_t members_to_launch(const Config& config, const Round& round);

// Opens a round for whatever credit is free. Nothing before the first publication, beyond the last
// step, or while a rollback is replayed.
void open_rounds(Context& context, PolicyId policy_id, Policy& policy);

// A member of a running task has settled. Once group_size have a reward, or all are settled: accept
// it, filter it (zero signal), or give it up as failed; the last two are replaced from the dataset,
// which keeps the reservation. One whose round is full is parked until the next round.
void settle_task(Context& context, Policy& policy, const TaskId& id);

// With OnStale::kDrop, after a publication: what is too old for the next step ends as stale, and is
// replaced where a place was kept for it.
void drop_stale(Context& context, PolicyId policy_id, Policy& policy);

// Nobody can play or score this task: what is launched or queued of its row ends as broken and is
// replaced, and the cursor passes the row by from now on (law 6.10).
void exclude_task(Context& context, Policy& policy, const BrokenWord& word);

// Halts where a dataset of which the steps left need something has only broken tasks.
void halt_without_tasks(Context& context, const Policy& policy);

// Takes a launch apart (leases, bodies) and queues the prompt for another one, on newer weights;
// one whose row is broken by now ends.
void relaunch(Context& context, Policy& policy, const TaskId& id);

// The task ends; the checkpoint of `step` makes that final.
void end_task(Context& context, Policy& policy, const TaskId& id, TaskEnd end, int64_t step);

// Takes the task's end back, if it has one. What becomes of the task is the caller's to say.
void withdraw_end(Context& context, Policy& policy, const TaskId& id);

// No prompt is left to start, and no group waits or runs.
bool exhausted(const State& state, const Policy& policy);

// Ends what the end of the run has cut off. Returns how many prompts did not get their turn, in
// all.
int64_t cut_off(Context& context, Policy& policy);

// No checkpoint before this version is kept: what the steps up to it consumed is not asked for
// again. The version has a checkpoint.
void let_go(Context& context, Policy& policy, int64_t version);

// Groups whose bodies are gone are launched again; an evaluation is begun anew. A batch that was
// handed over cannot be, unless a checkpoint covers it: its bodies were on disk before the trainer
// had it.
void on(Context& context, const BodiesLost& event);

}  // namespace tailrace::scheduler
