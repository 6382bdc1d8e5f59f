// Whether what a worker says is news: whether the run would be another one for it.
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

// The same of what else a worker may say: whether the run would be another one for it. What is
// late, said twice or never asked for costs no entry of the journal. (decide() itself answers a
// repeated question and hears a repeated complaint once more: to a state machine a message that
// comes twice is harmless, to a journal a million of them are not.)
bool expects(const State& state, const Staged& event);
bool expects(const State& state, const Installed& event);
bool expects(const State& state, const InstallFailed& event);
// More bytes of what is being staged, some time after the last that counted.
bool expects(const State& state, const StageProgress& event);
// A trainer says once in its session what it holds; said again, only other weights are news.
bool expects(const State& state, const RolledBack& event);
bool expects(const State& state, const Published& event);
bool expects(const State& state, const Durable& event);
// Asked once more in its session, a trainer has its answer, or gets it when there is one.
bool expects(const State& state, const TrainerWants& event);
// Said again while it is given up, it is the same trouble (law 7.2).
bool expects(const State& state, const WorkerFailed& event);
// A change, of the present session.
bool expects(const State& state, const Stalled& event);
// True for turns of the present attempt, and more than are stored.
bool expects(const State& state, const TurnsStored& event);

}  // namespace tailrace::scheduler
