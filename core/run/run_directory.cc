#include "core/run/run_directory.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

constexpr std::string_view kCheckpoint = "step_";

void create(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UserError("{}", describe_errno("create", directory, error.value()));
}

// The scheduler of a run under way holds its role, also where somebody has removed the run's lock.
void refuse_played(const RunPaths& paths) {
  const auto give_up = std::chrono::steady_clock::now() + kEarlierLaunchEnds;
  while (true) {
    const LockFile scheduler(paths.role("scheduler", 0));
    if (scheduler.held()) return;
    if (std::chrono::steady_clock::now() >= give_up) {
      throw UserError(
          "{} is in use by another launch, whose lock was removed (its scheduler is process {}). "
          "Wait for it, stop it with Ctrl-C or kill it, or choose another run.dir.",
          paths.root.string(), scheduler.holder());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

std::filesystem::path RunPaths::log(std::string_view role, int index) const {
  return logs() / fmt::format("{}-{}.log", role, index);
}

std::filesystem::path RunPaths::role(std::string_view role, int index) const {
  return roles() / fmt::format("{}-{}.lock", role, index);
}

std::filesystem::path RunPaths::stage_rows(std::string_view name) const {
  return root / fmt::format("{}.jsonl", name);
}

std::filesystem::path RunPaths::stage_eval_rows(std::string_view name) const {
  return root / fmt::format("{}_eval.jsonl", name);
}

std::filesystem::path RunPaths::stage_checkpoints(std::string_view name) const {
  return checkpoints() / name;
}

std::filesystem::path RunPaths::stage_reference(std::string_view name) const {
  return root / fmt::format("{}_reference.json", name);
}

std::filesystem::path RunPaths::stage_teacher(std::string_view name) const {
  return root / fmt::format("{}_teacher", name);
}

std::filesystem::path RunPaths::stage_model(std::string_view name) const { return root / name; }

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:06}", kCheckpoint, step); }

std::optional<int64_t> checkpoint_step(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kCheckpoint)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kCheckpoint.size(), end, step);
  if (error != std::errc{} || stop != end || step < 0) return std::nullopt;
  return step;
}

std::optional<int64_t> newest_checkpoint(const RunPaths& paths) {
  std::optional<int64_t> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(paths.checkpoints(), ignored))
    newest = std::max(newest, checkpoint_step(entry.path()));
  return newest;
}

void refuse_foreign_folder(const std::filesystem::path& root) {
  const RunPaths paths{root};
  // A lock without a config is a launch that ended, or has not yet come, to writing its config.
  if (!std::filesystem::exists(root) || std::filesystem::exists(paths.config()) ||
      std::filesystem::exists(paths.lock()))
    return;
  std::error_code error;
  // A mistyped run.dir must not fill somebody's home.
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    std::string name = entry.path().filename();
    throw UserError(
        "{} holds files (for example {}) but no config.yaml, so it is not a run directory. "
        "Choose another run.dir or an empty folder.",
        root.string(), name);
  }
  if (error) throw UserError("{}", describe_errno("list", root, error.value()));
}

RunDirectory::RunDirectory(const std::filesystem::path& root) : paths_{root} {
  create(root);
  refuse_foreign_folder(root);

  lock_.emplace(paths_.lock());
  if (!lock_->held()) {
    throw UserError(
        "{} is in use by another launch (process {}). Wait for it, stop it with Ctrl-C or kill "
        "it, or choose another run.dir.",
        root.string(), lock_->holder());
  }
  // Asked under the lock: before it another launch might have been writing one.
  resumes_ = std::filesystem::exists(paths_.config());
  for (const auto& directory : {paths_.trajectories(), paths_.checkpoints(), paths_.journal(),
                                paths_.weights(), paths_.logs(), paths_.roles()})
    create(directory);
  // Before the sweep: it removes a folder that the roles of a run under way still use.
  refuse_played(paths_);
  sweep();
}

void RunDirectory::sweep() const {
  for (const auto& directory : {paths_.root, paths_.trajectories(), paths_.checkpoints(),
                                paths_.reference(), paths_.journal(), paths_.weights(),
                                paths_.tokenizer(), paths_.logs(), paths_.roles(), paths_.traces()})
    // Through a link it would be somebody else's folder.
    if (directory == paths_.root || !std::filesystem::is_symlink(directory))
      remove_unfinished(directory);
  std::error_code ignored;
  if (!std::filesystem::is_symlink(paths_.roles()))
    std::filesystem::remove_all(paths_.ranks(), ignored);
}

}  // namespace tailrace
