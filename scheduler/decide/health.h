// Fitness of workers for work, and when failures are so many that a person must look (law 7).
//
// Two questions are kept apart. Is it the worker? Its faults in a row, without a good answer
// between, at different tasks, put it into quarantine for a time that doubles, after which it must
// prove itself with one lease; what it holds it may finish. Is it everybody? Then it is no worker's
// fault: the run halts when every worker of a role has come to the limit of quarantines in a row,
// or when environments or verifiers fail for one cause in more than a share of the last attempts,
// at more than half of the workers and of the tasks. One worker alone, whatever it does a thousand
// times, ends nothing as long as there are others; a lone one ends the run when it has had every
// chance.
#pragma once

#include <optional>
#include <string>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Once halted, nothing is granted until a restart.
void halt(Context& context, std::string reason);

// An attempt or a verification ended at this worker, which must be known to the state. Failures of
// environments and verifiers count against the worker only where there are others to compare with.
void record_outcome(Context& context, const WorkerId& worker, const WorkId& work, Outcome outcome,
                    const std::string& reason);

// It has left: whoever is fit among those that have may come back (law 7.5).
void record_leaving(Context& context, const WorkerId& worker);

// It has answered well: nothing is held against it any more.
void record_good(Context& context, const WorkerId& worker);

// A fault of the worker's own; the worker must be known to the state. `work`: what it failed at, if
// it was one thing; however often its task fails there, it is one fault (law 7.2).
void record_fault(Context& context, const WorkerId& worker, Fault fault, const std::string& reason,
                  const std::optional<WorkId>& work = {});

// The same, and no work for a while at once: it said itself that it cannot go on.
void quarantine(Context& context, const WorkerId& worker, Fault fault, const std::string& reason);

}  // namespace tailrace::scheduler
