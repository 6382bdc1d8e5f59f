#include "cli/roles/role_locks.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

// Far more than a machine has room for.
constexpr int kMaxJoined = 512;

[[noreturn]] void refuse_played(const RoleName& name, const RunPaths& run, const LockFile& lock) {
  throw UserError(
      "{} of {} is played already, by process {}. A role has one holder.\n       End it (Ctrl-C "
      "where it is a worker that joined), or wait a minute: a worker whose launch is gone goes "
      "too.",
      name.text(), run.root.string(), lock.holder());
}

}  // namespace

std::optional<RoleName> parse_role_name(std::string_view text) {
  const size_t dash = text.rfind('-');
  if (dash == text.npos) return std::nullopt;
  RoleName name;
  const auto kind = std::ranges::find(kEnumNames<RoleKind>, text.substr(0, dash));
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + dash + 1, end, name.index);
  if (kind == std::ranges::end(kEnumNames<RoleKind>) || error != std::errc() || rest != end ||
      name.index < 0)
    return std::nullopt;
  name.kind = static_cast<RoleKind>(kind - std::ranges::begin(kEnumNames<RoleKind>));
  return name;
}

std::string RoleName::text() const { return fmt::format("{}-{}", name_of(kind), index); }

int num_launched(RoleKind kind, const ResolvedRun& resolved) {
  switch (kind) {
    case RoleKind::kGate:
      return resolved.options.run.listen.empty() ? 0 : 1;
    case RoleKind::kTrainer:
      return static_cast<int>(resolved.options.train.ranks);
    case RoleKind::kRollout:
      return static_cast<int>(resolved.rollout_workers);
    case RoleKind::kReward:
      return static_cast<int>(resolved.reward_workers);
    default:
      return 1;
  }
}

std::vector<RoleName> roles_of(const ResolvedRun& resolved) {
  std::vector<RoleName> roles = {{RoleKind::kScheduler, 0}};
  for (const RoleKind kind :
       {RoleKind::kGate, RoleKind::kTrainer, RoleKind::kRollout, RoleKind::kReward}) {
    for (int i = 0; i < num_launched(kind, resolved); ++i) roles.push_back({kind, i});
  }
  return roles;
}

void await_roles(const ResolvedRun& resolved, const RunPaths& run,
                 std::chrono::milliseconds patience,
                 const std::function<void(const std::string&)>& say) {
  constexpr std::chrono::milliseconds kLook{20};
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (const RoleName& name : roles_of(resolved)) {
    for (bool told = false;; told = true) {
      const LockFile lock(run.role(name_of(name.kind), name.index));
      // Let go again at once: the lock is only asked whether somebody plays the role.
      if (lock.held()) break;
      if (std::chrono::steady_clock::now() >= give_up) refuse_played(name, run, lock);
      if (!told)
        say(fmt::format("waiting for {} of an earlier launch to end (process {})", name.text(),
                        lock.holder()));
      std::this_thread::sleep_for(kLook);
    }
  }
}

HeldRole hold_role(const RoleName& name, const RunPaths& run) {
  LockFile lock(run.role(name_of(name.kind), name.index));
  if (!lock.held()) refuse_played(name, run, lock);
  return {name, std::move(lock)};
}

HeldRole hold_role_to_join(RoleKind kind, const ResolvedRun& resolved, const RunPaths& run) {
  if (resolved.supervised_only)
    throw UserError("{} learns from sft.data alone: there is nothing to sample and to score.",
                    run.root.string());
  // Behind the launch's own: a process of it that is started again must find its name free.
  const int first = num_launched(kind, resolved);
  for (int index = first; index < first + kMaxJoined; ++index) {
    LockFile lock(run.role(name_of(kind), index));
    if (lock.held()) return {{kind, index}, std::move(lock)};
  }
  throw UserError("{} {} workers have joined {} already.", kMaxJoined, name_of(kind),
                  run.root.string());
}

std::optional<HeldRole> hold_role_again(const RoleName& name, const ResolvedRun& resolved,
                                        const RunPaths& run) {
  if (name.index < num_launched(name.kind, resolved)) return std::nullopt;
  LockFile lock(run.role(name_of(name.kind), name.index));
  if (!lock.held()) return std::nullopt;
  return HeldRole{name, std::move(lock)};
}

bool has_joined(RoleKind kind, const ResolvedRun& resolved, const RunPaths& run) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run.roles(), error)) {
    const auto role = parse_role_name(entry.path().stem().string());
    if (entry.path().extension() == ".lock" && role && role->kind == kind &&
        role->index >= num_launched(kind, resolved) && !LockFile(entry.path()).held())
      return true;
  }
  return false;
}

}  // namespace tailrace
