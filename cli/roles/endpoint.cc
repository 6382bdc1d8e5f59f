#include "cli/roles/endpoint.h"

#include <cerrno>
#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/unique_number.h"
#include "core/base/unix_socket.h"
#include "core/base/version.h"

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

// The contents of RUN/endpoint.
struct Record {
  std::string name, build;
};

Result<Record> read_record(const fs::path& run_directory) {
  const auto text = read_file(record_of(run_directory), 4096);
  if (!text) return text.failure();
  LineReader lines(text.value());
  Record record;
  if (const auto line = lines.next()) record.name = line->text;
  if (const auto line = lines.next()) record.build = line->text;
  return record;
}

std::string text_of(const std::string& name) { return fmt::format("{}\n{}\n", name, build_id()); }

// The socket's path; empty where the endpoint is none of ours.
fs::path socket_of(const std::string& name) {
  return name.starts_with(kScheme) ? fs::path(name.substr(kScheme.size())) : fs::path();
}

// Some worker of the launch of this endpoint has had its weights. Of another launch it means
// nothing.
bool has_begun(const fs::path& run_directory, const std::string& name) {
  const auto marked = read_file(begun_of(run_directory), 4096);
  return marked && marked.value() == name;
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

void remove_left_behind(const fs::path& run_directory) {
  const auto record = read_record(run_directory);
  if (!record) return;
  const fs::path path = socket_of(record.value().name);
  // It may be a copy of a living run's.
  if (!path.empty() && !somebody_listens(path)) remove_folder(path.parent_path());
}

}  // namespace

RunEndpoint::RunEndpoint(const fs::path& run_directory) : run_(run_directory) {
  // The directory is locked by this launch, so whoever wrote the record is gone.
  remove_left_behind(run_);
  const fs::path base = base_folder();
  constexpr int kTries = 100;
  for (int attempt = 0;; ++attempt) {
    folder_ = base / (std::string(kFolderPrefix) + random_suffix());
    std::error_code ignored;
    // The record must never name what is somebody else's.
    if (fs::exists(fs::symlink_status(folder_, ignored)) && attempt < kTries) continue;
    name_ = std::string(kScheme) + (folder_ / kSocket).string();
    // First, so that a kill between the two leaves nothing that the next launch does not find.
    if (auto written = write_file_atomic(record_of(run_), text_of(name_)); !written)
      throw UserError("{}", written.failure().message);
    // Whoever can open the socket speaks to the scheduler: the folder lets in this user alone.
    if (::mkdir(folder_.c_str(), 0700) == 0) return;
    const int error = errno;
    if (error == EEXIST && attempt < kTries) continue;
    fs::remove(record_of(run_), ignored);
    throw UserError("{}\n       Try another TMPDIR.", describe_errno("create", folder_, error));
  }
}

RunEndpoint::~RunEndpoint() { remove(); }

void RunEndpoint::remove() {
  remove_folder(folder_);
  std::error_code ignored;
  if (begun()) fs::remove(begun_of(run_), ignored);
  // Last: until then it leads the next launch to what is left. Not what another has written since.
  if (is_endpoint_of(run_, name_)) fs::remove(record_of(run_), ignored);
}

bool RunEndpoint::begun() const { return has_begun(run_, name_); }

void mark_begun(const fs::path& run_directory, const std::string& endpoint) {
  // Where this fails the run goes on: the supervisor is only stricter with workers that break.
  (void)write_file_atomic(begun_of(run_directory), endpoint);
}

bool is_running(const fs::path& run_directory) {
  const auto record = read_record(run_directory);
  if (!record) return false;
  const fs::path socket = socket_of(record.value().name);
  return !socket.empty() && somebody_listens(socket);
}

std::string read_endpoint(const fs::path& run_directory) {
  const auto record = read_record(run_directory);
  if (!record) {
    throw UserError("{}: nobody runs it now ({}).\n       Try 'tailrace launch --run-dir {}'.",
                    run_directory.string(), record.failure().message, run_directory.string());
  }
  return record.value().name;
}

std::string endpoint_to_join(const fs::path& run_directory) {
  const std::string run = run_directory.string();
  const auto record = read_record(run_directory);
  if (!record) {
    throw UserError(
        "{}: nobody runs it now: it has ended or was stopped.\n       'tailrace status {}' says "
        "how it stands. Try 'tailrace launch --run-dir {}', and join it then.",
        run, run, run);
  }
  const auto& [name, build] = record.value();
  // Each process of a run must be of one build: of one law, one protocol, one arithmetic.
  if (build != build_id()) {
    throw UserError(
        "{} is run by another build of tailrace ({}; this one is {} {}).\n       Join it with the "
        "binary that launched it.",
        run, build.empty() ? "it does not say which" : build, version(), build_id());
  }
  const bool begun = has_begun(run_directory, name);
  if (!somebody_listens(socket_of(name))) {
    throw UserError(
        "{}: its scheduler does not answer: it {}, or the launch was killed.\n       Try again in "
        "a few seconds, and if that does not help 'tailrace launch --run-dir {}'.",
        run, begun ? "is being started again" : "is still starting", run);
  }
  if (!begun) {
    throw UserError(
        "{} is still starting: no worker of it has weights yet, so what is wrong with the run "
        "itself would not be told from what is wrong with a worker that joins.\n       Try again "
        "when its first step is under way.",
        run);
  }
  return name;
}

bool is_endpoint_of(const fs::path& run_directory, const std::string& endpoint) {
  const auto record = read_record(run_directory);
  return record && record.value().name == endpoint;
}

}  // namespace tailrace
