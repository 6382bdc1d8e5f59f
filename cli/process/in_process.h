// All roles of a run as threads of this process: for debuggers and sanitizers. They talk over the
// same endpoint as processes do. Nothing is restarted, and a role that breaks ends the run.
#pragma once

#include <functional>
#include <string>

#include "cli/process/supervisor.h"
#include "cli/roles/roles.h"

namespace tailrace {

// Prints what is to be said about the end and cleans up; returns the exit status.
using AbandonSink = std::function<int(const SupervisorResult&)>;

// As supervise(): takes SIGINT and SIGTERM while it runs; the first asks the scheduler to stop, the
// second ends the process at once. A thread cannot be killed alone: when a role does not end in
// time, `abandon` is called and the process ends.
SupervisorResult run_in_process(const RoleContext& context, const SupervisorOptions& options,
                                const SupervisorSink& say, const std::function<void()>& tick,
                                const AbandonSink& abandon);

}  // namespace tailrace
