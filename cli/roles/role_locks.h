// The roles of a run by name, and who plays each: the holder of RUN/roles/ROLE-N.lock.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "core/base/enum_names.h"
#include "core/run/lock_file.h"
#include "core/run/run_directory.h"

namespace tailrace {

// The role of a process of a run.
enum class RoleKind : uint8_t { kScheduler, kGate, kTrainer, kRollout, kReward };
constexpr auto enum_names(RoleKind) {
  return name_table<RoleKind>({{RoleKind::kScheduler, "scheduler"},
                               {RoleKind::kGate, "gate"},
                               {RoleKind::kTrainer, "trainer"},
                               {RoleKind::kRollout, "rollout"},
                               {RoleKind::kReward, "reward"}});
}

struct RoleName {
  RoleKind kind = RoleKind::kScheduler;
  int index = 0;
  std::string text() const;  // "rollout-0"
};

// The role named by "rollout-0"; nothing: it is no such name.
std::optional<RoleName> parse_role_name(std::string_view text);

// The roles that a run needs: one scheduler, the gate of a run that others may join from other
// hosts, the ranks of the trainer, and workers.
std::vector<RoleName> roles_of(const ResolvedRun& resolved);

// How many of this kind a launch starts; their indices come first.
int num_launched(RoleKind kind, const ResolvedRun& resolved);

// A role of a run that this process alone plays, as long as this lives.
struct HeldRole {
  RoleName name;
  LockFile lock;
};
// Waits until nobody plays a role that a launch of this run plays itself: the processes of a launch
// that was killed die with it, but take a moment, the longer the more memory they have to give
// back. Before the launch starts its own. `say` gets a line for each that has to be waited for.
// Throws UserError when somebody still plays one after `patience` in all.
void await_roles(const ResolvedRun& resolved, const RunPaths& run,
                 std::chrono::milliseconds patience,
                 const std::function<void(const std::string&)>& say);

// Throws UserError when somebody else plays it.
HeldRole hold_role(const RoleName& name, const RunPaths& run);
// The first free one beyond those that the launch plays itself. `kind`: rollout or reward. Throws
// UserError when there are too many.
HeldRole hold_role_to_join(RoleKind kind, const ResolvedRun& resolved, const RunPaths& run);
// A role of one that has joined before and may come back; nothing: somebody else has it, or it is
// one of those that the launch plays itself.
std::optional<HeldRole> hold_role_again(const RoleName& name, const ResolvedRun& resolved,
                                        const RunPaths& run);
// Whether a joined worker of this kind is playing now.
bool has_joined(RoleKind kind, const ResolvedRun& resolved, const RunPaths& run);

}  // namespace tailrace
