// Whether what a worker says of its work is news: whether the run would be another one for it. Of
// other events event.h declares the same beside each.
#pragma once

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// Whether a result of this lease would be taken. The service asks before it stores the body, so
// that a late or doubled answer costs no disk.
bool expects_result(const State& state, const WorkerId& worker, Lane lane, const LeaseId& lease);
// The same of a lease that was found under the member's name.
bool expects_result(const Lease& held, const WorkerId& worker, const LeaseId& lease);
// The same of a verdict: one attempt may be verified several times, and only the verification that
// was asked for last counts.
bool expects_verdict(const State& state, const Reward& reward);

}  // namespace tailrace::scheduler
