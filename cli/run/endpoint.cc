#include "cli/run/endpoint.h"

#include <cerrno>
#include <cstdlib>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "ipc://";
// Both short: the path of a socket has at most 107 characters.
constexpr std::string_view kFolderPrefix = "tr-";
constexpr std::string_view kSocket = "s";
constexpr std::string_view kBegun = "begun";

fs::path record_of(const fs::path& run_directory) { return run_directory / "endpoint"; }

// XDG_RUNTIME_DIR is short and this user's own; the temporary folder stands in where it is not set,
// as in containers.
fs::path base_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code error;
  // It may be left over from another user (su, sudo), or its folder may be gone.
  if (runtime != nullptr && fs::is_directory(runtime, error) && ::access(runtime, W_OK | X_OK) == 0)
    return runtime;
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) return temporary;
  const char* set = std::getenv("TMPDIR");
  throw UserError("{}\n       Try another TMPDIR.",
                  describe_errno("use", set != nullptr ? set : "/tmp", error.value()));
}

// Only what this class made, and only its known parts, which hold nothing: the record may have been
// edited, and lead to a folder of somebody's data.
void remove_folder(const fs::path& folder) {
  if (!folder.filename().string().starts_with(kFolderPrefix)) return;
  std::error_code ignored;
  if (fs::is_socket(fs::symlink_status(folder / kSocket, ignored)))
    fs::remove(folder / kSocket, ignored);
  const fs::path begun = folder / kBegun;
  if (fs::is_regular_file(fs::symlink_status(begun, ignored)) && fs::file_size(begun, ignored) == 0)
    fs::remove(begun, ignored);
  fs::remove(folder, ignored);  // fails when somebody else's files are in it
}

void remove_left_behind(const fs::path& record) {
  const auto text = read_file(record, 4096);
  if (!text || !text.value().starts_with(kScheme)) return;
  std::string_view path = std::string_view(text.value()).substr(kScheme.size());
  path = path.substr(0, path.find('\n'));
  remove_folder(fs::path(path).parent_path());
}

}  // namespace

RunEndpoint::RunEndpoint(const fs::path& run_directory) : record_(record_of(run_directory)) {
  // The directory is locked by this launch, so whoever wrote the record is gone.
  remove_left_behind(record_);
  std::string pattern = (base_folder() / (std::string(kFolderPrefix) + "XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {  // mode 0700
    throw UserError("{}\n       Try another TMPDIR.", describe_errno("create", pattern, errno));
  }
  folder_ = pattern;
  name_ = std::string(kScheme) + (folder_ / kSocket).string();
  if (auto written = write_file_atomic(record_, name_ + "\n"); !written) {
    remove_folder(folder_);
    throw UserError("{}", written.failure().message);
  }
}

RunEndpoint::~RunEndpoint() { remove(); }

void RunEndpoint::remove() {
  std::error_code ignored;
  // The record first, so that it leads nobody to a folder that is gone.
  fs::remove(record_, ignored);
  remove_folder(folder_);
}

bool RunEndpoint::begun() const {
  std::error_code ignored;
  return fs::exists(folder_ / kBegun, ignored);
}

void mark_begun(const std::string& endpoint) {
  if (!endpoint.starts_with(kScheme)) return;
  const fs::path socket = endpoint.substr(kScheme.size());
  // Where this fails the run goes on: the supervisor is only stricter with workers that break.
  (void)write_file_atomic(socket.parent_path() / kBegun, "");
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
