// From the name of a role to the function that plays it: the one place that knows all of them. A
// worker process and a thread of `launch --in-process` both come through here.
//
// Each role is a class or function of its own folder over plain options (endpoint, run directory,
// its sections of the config), which returns when the scheduler tells it to end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "cli/roles/role_locks.h"
#include "core/base/exit_code.h"
#include "core/run/log.h"
#include "core/run/run_directory.h"
#include "core/run/status_page.h"
#include "core/weights/colocation.h"
#include "core/wire/endpoint.h"
#include "core/wire/greeting.h"
#include "kernels/base/pulse.h"
#include "rollout/worker/worker.h"

namespace tailrace {

// Throws UserError when the processes of the run, or the one that plays all roles, will need more
// files than `left` (files_left()): a process that has none left cannot even say so.
void check_open_files(const ResolvedRun& run, bool in_process, int64_t left);

// Throws UserError when this process cannot have the threads that all roles in it will need: who
// cannot start one in the middle of the run can only end it.
void check_threads(const ResolvedRun& run);

// The parts that a worker of another host has in place of the run's directory.
struct RemoteRole {
  uint64_t incarnation = 0;  // under which it has greeted
  FetchWeights fetch_weights;
  // With a silent scheduler: a link may be away for a while, and the worker comes back.
  std::chrono::milliseconds patience = wire::kMayBeAway;
};

struct RoleContext {
  RunPaths run;
  const ResolvedRun& resolved;
  wire::Endpoint endpoint;
  const Registries& registries;
  bool joined = false;  // a person added it to the run: nobody starts it again
  // A joined worker's places: a rollout worker's pool, which pool_to_join() knows; where it is.
  std::string pool = {}, cluster = {}, host = {};
  const RemoteRole* remote = nullptr;  // null: it is on the run's host
  // The turns on a GPU of this process's trainer and rollout worker; null: they take
  // none.
  Colocation* colocation = nullptr;
  // Where each of these two shows that it makes progress, in the place of the page; null: there.
  Pulse *trainer_pulse = nullptr, *rollout_pulse = nullptr;
  bool forced = false;  // it begins although less memory is free than it needs (launch --force)
};

// The colocation for the process that plays both (run.colocate); null: it is off. Takes the memory
// that they have in turn. Throws UserError where the device has less than both need.
std::unique_ptr<Colocation> make_colocation(const RoleContext& context);

// Plays the role to its end; the result is the exit status of its process. `stop` asks the
// scheduler for a clean end of the run, and one that joined to leave it with a goodbye; the others
// end by the scheduler's word, and hear `stop` only to end early. Its progress is seen on `page`.
// Throws UserError for what a person must mend.
ExitCode play_role(const HeldRole& role, const RoleContext& context, StatusPage& page, Log& log,
                   std::stop_token stop);
// The same for one that is named.
ExitCode run_role(const RoleName& name, const RoleContext& context, StatusPage& page, Log& log,
                  std::stop_token stop);

}  // namespace tailrace
