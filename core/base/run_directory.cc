#include "core/base/run_directory.h"

#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

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

}  // namespace

std::filesystem::path RunPaths::log(std::string_view role, int index) const {
  return logs() / fmt::format("{}-{}.log", role, index);
}

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

  // O_CLOEXEC: a program that inherited the descriptor would keep the lock after our death.
  lock_ = FileDescriptor(::open(paths_.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_.is_open()) throw UserError("{}", describe_errno("open", paths_.lock(), errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    int error = errno;
    if (error != EWOULDBLOCK) throw UserError("{}", describe_errno("lock", paths_.lock(), error));
    auto owner = read_file(paths_.lock(), 64);
    std::string pid = owner ? owner.value().substr(0, owner.value().find('\n')) : "";
    throw UserError(
        "{} is in use by another launch (process {}). Wait for it, stop it with Ctrl-C or kill "
        "{}, or choose another run.dir.",
        root.string(), pid.empty() ? "unknown" : pid, pid.empty() ? "its process" : pid);
  }
  // For the message of the launch that comes too late; the lock itself is the kernel's.
  std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock_.get(), 0) != 0 || ::pwrite(lock_.get(), pid.data(), pid.size(), 0) < 0) {
    throw UserError("{}", describe_errno("write", paths_.lock(), errno));
  }
  // Asked under the lock: before it another launch might have been writing one.
  resumes_ = std::filesystem::exists(paths_.config());
  for (const auto& directory : {paths_.trajectories(), paths_.checkpoints(), paths_.journal(),
                                paths_.weights(), paths_.logs()})
    create(directory);
}

}  // namespace tailrace
