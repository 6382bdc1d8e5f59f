#include "cli/run/role_locks.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "cli/run/pools.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

// Far more than a machine has room for.
constexpr int kMaxJoined = 512;

// Of a lock file of this role: "rollout-2.lock".
std::optional<int> index_of(RoleKind kind, const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  const std::string prefix = fmt::format("{}-", name_of(kind));
  constexpr std::string_view kSuffix = ".lock";
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* begin = name.data() + prefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  int index = 0;
  const auto [rest, error] = std::from_chars(begin, end, index);
  if (error != std::errc() || rest != end) return std::nullopt;
  return index;
}

[[noreturn]] void refuse_played(const RoleName& name, const RunPaths& run, const LockFile& lock) {
  throw UserError(
      "{} of {} is played already, by process {}. A role has one holder.\n       End it (Ctrl-C "
      "where it is a worker that joined), or wait a minute: a worker whose launch is gone goes "
      "too.",
      name.text(), run.root.string(), lock.holder());
}

}  // namespace

std::string RoleName::text() const { return fmt::format("{}-{}", name_of(kind), index); }

int num_launched(RoleKind kind, const RunOptions& options) {
  switch (kind) {
    case RoleKind::kGate:
      return options.run.listen.empty() ? 0 : 1;
    case RoleKind::kTrainer:
      return static_cast<int>(options.train.ranks);
    case RoleKind::kRollout:
      return static_cast<int>(num_rollout_workers(options));
    case RoleKind::kReward:
      return static_cast<int>(options.reward.workers);
    default:
      return 1;
  }
}

std::vector<RoleName> roles_of(const RunOptions& options) {
  std::vector<RoleName> roles = {{RoleKind::kScheduler, 0}};
  for (const RoleKind kind :
       {RoleKind::kGate, RoleKind::kTrainer, RoleKind::kRollout, RoleKind::kReward}) {
    for (int i = 0; i < num_launched(kind, options); ++i) roles.push_back({kind, i});
  }
  return roles;
}

void await_roles(const RunOptions& options, const RunPaths& run, std::chrono::milliseconds patience,
                 const std::function<void(const std::string&)>& say) {
  constexpr std::chrono::milliseconds kLook{20};
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (const RoleName& name : roles_of(options)) {
    for (bool told = false;; told = true) {
      const LockFile lock(run.role(name_of(name.kind), name.index));
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

HeldRole hold_role_to_join(RoleKind kind, const RunOptions& options, const RunPaths& run) {
  const int first = num_launched(kind, options);
  for (int index = first; index < first + kMaxJoined; ++index) {
    LockFile lock(run.role(name_of(kind), index));
    if (lock.held()) return {{kind, index}, std::move(lock)};
  }
  throw UserError("{} {} workers have joined {} already.", kMaxJoined, name_of(kind),
                  run.root.string());
}

std::optional<HeldRole> hold_role_again(RoleKind kind, const std::string& name,
                                        const RunOptions& options, const RunPaths& run) {
  const auto index = index_of(kind, name + ".lock");
  const int first = num_launched(kind, options);
  if (!index || *index < first || *index >= first + kMaxJoined) return std::nullopt;
  LockFile lock(run.role(name_of(kind), *index));
  if (!lock.held()) return std::nullopt;
  return HeldRole{{kind, *index}, std::move(lock)};
}

bool has_joined(RoleKind kind, const RunOptions& options, const RunPaths& run) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run.roles(), error)) {
    const auto index = index_of(kind, entry.path());
    if (index && *index >= num_launched(kind, options) && !LockFile(entry.path()).held())
      return true;
  }
  return false;
}

}  // namespace tailrace
