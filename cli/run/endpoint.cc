#include "cli/run/endpoint.h"

#include <cerrno>
#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/unique_number.h"
#include "core/base/unix_socket.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "ipc://";
// Both short: the path of a socket has at most 107 characters.
constexpr std::string_view kFolderPrefix = "tr-";
constexpr std::string_view kSocket = "s";

fs::path record_of(const fs::path& run_directory) { return run_directory / "endpoint"; }
fs::path begun_of(const fs::path& run_directory) { return run_directory / "begun"; }

// XDG_RUNTIME_DIR is short and this user's own; the temporary folder stands in where it is not set,
// as in containers.
fs::path base_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code error;
  // It may be left over from another user (su, sudo), or its folder may be gone.
  if (runtime != nullptr && fs::is_directory(runtime, error) && ::access(runtime, W_OK | X_OK) == 0)
    return fs::absolute(runtime);
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) return fs::absolute(temporary);
  const char* set = std::getenv("TMPDIR");
  throw UserError("{}\n       Try another TMPDIR.",
                  describe_errno("use", set != nullptr ? set : "/tmp", error.value()));
}

// Only what this class made, and only its known parts, which hold nothing: the record may have been
// edited, and lead to a folder of somebody's data.
void remove_folder(const fs::path& folder) {
  if (!folder.filename().string().starts_with(kFolderPrefix)) return;
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::geteuid())
    return;
  std::error_code ignored;
  if (fs::is_socket(fs::symlink_status(folder / kSocket, ignored)))
    fs::remove(folder / kSocket, ignored);
  ::rmdir(folder.c_str());  // fails when somebody else's files are in it
}

// Six characters that nobody else has.
std::string random_suffix() {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789";
  uint64_t bits = unique_number();
  std::string suffix;
  for (; suffix.size() < 6; bits /= kCharacters.size())
    suffix += kCharacters[bits % kCharacters.size()];
  return suffix;
}

// The socket that the record names; empty: there is none.
fs::path recorded_socket(const fs::path& record) {
  const auto text = read_file(record, 4096);
  if (!text || !text.value().starts_with(kScheme)) return {};
  const std::string path = text.value().substr(kScheme.size());
  return path.substr(0, path.find('\n'));
}

void remove_left_behind(const fs::path& record) {
  const fs::path socket = recorded_socket(record);
  // It may be a copy of a living run's.
  if (!socket.empty() && !somebody_listens(socket)) remove_folder(socket.parent_path());
}

}  // namespace

RunEndpoint::RunEndpoint(const fs::path& run_directory)
    : record_(record_of(run_directory)), begun_(begun_of(run_directory)) {
  // The directory is locked by this launch, so whoever wrote the record is gone.
  remove_left_behind(record_);
  const fs::path base = base_folder();
  constexpr int kTries = 100;
  for (int attempt = 0;; ++attempt) {
    folder_ = base / (std::string(kFolderPrefix) + random_suffix());
    std::error_code ignored;
    // The record must never name what is somebody else's.
    if (fs::exists(fs::symlink_status(folder_, ignored)) && attempt < kTries) continue;
    name_ = std::string(kScheme) + (folder_ / kSocket).string();
    // First, so that a kill between the two leaves nothing that the next launch does not find.
    if (auto written = write_file_atomic(record_, name_ + "\n"); !written)
      throw UserError("{}", written.failure().message);
    if (::mkdir(folder_.c_str(), 0700) == 0) return;
    const int error = errno;
    if (error == EEXIST && attempt < kTries) continue;
    fs::remove(record_, ignored);
    throw UserError("{}\n       Try another TMPDIR.", describe_errno("create", folder_, error));
  }
}

RunEndpoint::~RunEndpoint() { remove(); }

void RunEndpoint::remove() {
  remove_folder(folder_);
  std::error_code ignored;
  if (begun()) fs::remove(begun_, ignored);
  // Last: until then it leads the next launch to what is left. Not what another has written since.
  if (const auto text = read_file(record_, 4096); text && text.value() == name_ + "\n")
    fs::remove(record_, ignored);
}

bool RunEndpoint::begun() const {
  const auto marked = read_file(begun_, 4096);
  // Of another launch it means nothing.
  return marked && marked.value() == name_;
}

void mark_begun(const fs::path& run_directory, const std::string& endpoint) {
  // Where this fails the run goes on: the supervisor is only stricter with workers that break.
  (void)write_file_atomic(begun_of(run_directory), endpoint);
}

bool is_running(const fs::path& run_directory) {
  const fs::path socket = recorded_socket(record_of(run_directory));
  return !socket.empty() && somebody_listens(socket);
}

std::string read_endpoint(const fs::path& run_directory) {
  auto text = read_file(record_of(run_directory), 4096);
  if (!text) {
    throw UserError("{}: nobody runs it now ({}).\n       Try 'tailrace launch --run-dir {}'.",
                    run_directory.string(), text.failure().message, run_directory.string());
  }
  std::string name = text.value();
  while (name.ends_with('\n')) name.pop_back();
  return name;
}

}  // namespace tailrace
