// The gate of a run as a role: which workers of other hosts it takes, under which names, and what
// it hands out to them.
//
// Thread: run_gate() occupies the thread that calls it.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "core/base/exit_code.h"
#include "core/run/log.h"
#include "core/run/run_directory.h"

namespace tailrace {

// Whether this machine can open the gate of a run, before the run is begun. Throws UserError about
// run.keys or run.listen. Returns what a person should know.
std::vector<std::string> check_gate(const RunOptions& options);

// Until `stop`. Throws UserError: keys that are missing, a port that cannot be bound, or a file of
// the run that has changed since it began.
// `scheduler`: its endpoint on this host.
ExitCode run_gate(const RunPaths& run, const ResolvedRun& resolved, const std::string& scheduler,
                  Log& log, const std::stop_token& stop);

}  // namespace tailrace
