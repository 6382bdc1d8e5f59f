// The ranks that train a policy together: who they are, and that they meet (law 8.7). Rank 0 is the
// policy's trainer, and all that is said of one is said of it (lineage.h).
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// One beside rank 0.
bool is_rank(const Worker& worker);
// A session of it begins, or has ended: the ranks meet anew.
void join_rank(State& state, const WorkerId& id, const Worker& worker);
void leave_rank(State& state, const WorkerId& id, const Worker& worker);
// Version 0 is here: those that trained a stage together meet anew. Before the state says so.
void end_stage_of_ranks(Policy& policy);

// Tells all ranks to meet, once they are there and have not been told.
void form_ranks(Context& context, PolicyId policy_id, Policy& policy);

}  // namespace tailrace::scheduler
