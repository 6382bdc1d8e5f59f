// The queues of members that wait for a rollout worker, in the order of their ranks (law 6.9).
#pragma once

#include <cstdint>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// The need of a member of this task when it waits.
Need need_of(const State& state, Lane lane, const TaskId& id, const Task& task);
// The member waits for a rollout worker, or no longer. Its task must be known.
void add_waiting(State& state, const WorkId& work);
void drop_waiting(State& state, const WorkId& work);
// All members of a task that was just launched.
void add_all_waiting(State& state, Lane lane, const TaskId& id, const Task& task);
int64_t num_waiting(const State& state);
// The rank of a member under the rules of this state, by what is known of its task (law 6.9).
int64_t rank_of(const State& state, Lane lane, const Task& task, int32_t member);
// A sample of the member's task came, and was so long: its siblings' ranks follow.
void learn_length(State& state, const WorkId& work, Task& task, int64_t tokens);
// Everything that waits anew, after other rules have come.
void sort_waiting(State& state);

}  // namespace tailrace::scheduler
