#include "core/wire/ipc_file.h"

#include <cerrno>
#include <optional>

#include <fmt/format.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/unix_socket.h"

namespace tailrace::wire {
namespace {

constexpr std::string_view kIpc = "ipc://";

// The facts of the entry itself: a link that leads elsewhere is none of ours.
std::optional<struct stat> look_at(const std::filesystem::path& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return std::nullopt;
  return facts;
}

}  // namespace

bool IpcFile::names(std::string_view endpoint) { return endpoint.starts_with(kIpc); }

IpcFile::IpcFile(std::string_view endpoint) : path_(endpoint.substr(kIpc.size())) {}

Result<void> IpcFile::check_free() const {
  const std::string path = path_.string();
  if (path.empty() || path.size() > kMaxSocketPath) {
    return Failure{
        fmt::format("the socket's path has {} characters; it must have 1 to {}.\n"
                    "       Try a shorter temporary directory (TMPDIR or XDG_RUNTIME_DIR).",
                    path.size(), kMaxSocketPath)};
  }
  if (somebody_listens(path_)) {
    return Failure{
        "a live process listens there.\n"
        "       Stop the other run, or give this one another endpoint."};
  }
  return {};
}

Result<void> IpcFile::make_room() const {
  if (auto is_free = check_free(); !is_free) return is_free;
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Failure{describe_errno("create", folder, errno)};
  const auto found = look_at(folder);
  // Whoever owns the folder decides who is met there.
  if (found && folder_owner_ && found->st_uid != *folder_owner_)
    return Failure{fmt::format("{} belongs to somebody else now", folder.string())};
  if (found && !S_ISDIR(found->st_mode))
    return Failure{fmt::format("{} is no folder", folder.string())};
  if (const auto entry = look_at(path_); entry && !S_ISSOCK(entry->st_mode))
    return Failure{fmt::format("something else lies at {}: no socket", path_.string())};
  return {};
}

IpcFile::Identity IpcFile::identity() const {
  const auto found = look_at(path_);
  if (!found || !S_ISSOCK(found->st_mode)) return {};
  return {found->st_dev, found->st_ino};
}

void IpcFile::note_bound() {
  bound_ = identity();
  const auto folder = look_at(path_.parent_path());
  if (folder) folder_owner_ = folder->st_uid;
}

bool IpcFile::is_there() const {
  // Zeros are nobody's: it may have been gone before it was noted.
  return bound_ != Identity{} && identity() == bound_;
}

}  // namespace tailrace::wire
