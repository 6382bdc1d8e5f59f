// From the name of a role to the function that plays it: the one place that knows all of them. A
// worker process and a thread of `launch --in-process` both come through here.
//
// Each role is a class or function of its own folder over plain options (endpoint, run directory,
// its sections of the config), which returns when the scheduler tells it to end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "cli/run/registries.h"
#include "core/base/enum_names.h"
#include "core/base/exit_code.h"
#include "core/base/lock_file.h"
#include "core/base/log.h"
#include "core/base/run_directory.h"
#include "core/base/status_page.h"

namespace tailrace {

// What a process of a run does.
enum class RoleKind : uint8_t { kScheduler, kTrainer, kRollout, kReward };
constexpr auto enum_names(RoleKind) {
  return name_table<RoleKind>({{RoleKind::kScheduler, "scheduler"},
                               {RoleKind::kTrainer, "trainer"},
                               {RoleKind::kRollout, "rollout"},
                               {RoleKind::kReward, "reward"}});
}

struct RoleName {
  RoleKind kind = RoleKind::kScheduler;
  int index = 0;
  std::string text() const;  // "rollout-0"
};

// The roles that a run needs: one scheduler, the ranks of the trainer, and workers.
std::vector<RoleName> roles_of(const RunOptions& options);

// Throws UserError when the processes of the run, or the one that plays all roles, will need more
// files than `left` (files_left()): a process that has none left cannot even say so.
void check_open_files(const RunOptions& options, bool in_process, int64_t left);

// Throws UserError when this process cannot have the threads that all roles in it will need: who
// cannot start one in the middle of the run can only end it.
void check_threads(const RunOptions& options);

struct RoleContext {
  RunPaths run;
  const RunOptions& options;  // resolved and valid
  std::string endpoint;
  const Registries& registries;
  bool joined = false;  // a person added it to the run: nobody starts it again
  // Of a worker that joined: of a rollout worker its pool, which pool_to_join() knows; where it is.
  std::string pool = {}, cluster = {}, host = {};
};

// A role of a run that this process alone plays, as long as this lives.
struct HeldRole {
  RoleName name;
  LockFile lock;
};
// Waits until nobody plays a role that a launch of this run plays itself: the processes of a launch
// that was killed die with it, but take a moment, the longer the more memory they have to give
// back. Before the launch starts its own. `say` gets a line for each that has to be waited for.
// Throws UserError when somebody still plays one after `patience` in all.
void await_roles(const RunOptions& options, const RunPaths& run, std::chrono::milliseconds patience,
                 const std::function<void(const std::string&)>& say);

// Throws UserError when somebody else plays it.
HeldRole hold_role(const RoleName& name, const RunPaths& run);
// The first free one beyond those that the launch plays itself. `kind`: rollout or reward. Throws
// UserError when there are too many.
HeldRole hold_role_to_join(RoleKind kind, const RunOptions& options, const RunPaths& run);
// Somebody plays such a role.
bool has_joined(RoleKind kind, const RunOptions& options, const RunPaths& run);

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
