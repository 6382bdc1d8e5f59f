#include "sandbox/process/remove_folder.h"

#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/file_descriptor.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// Deeper ones are left, and told of.
constexpr int kMostFolders = 100'000;

// By a descriptor: what the name leads to meanwhile is not touched.
bool open_to_owner(const fs::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open()) return false;
  return ::chmod(fmt::format("/proc/self/fd/{}", file.get()).c_str(), 0700) == 0;
}

// It and all folders in it.
void open_all_to_owner(const fs::path& top) {
  std::vector<fs::path> folders = {top};
  for (int count = 0; !folders.empty() && count < kMostFolders; ++count) {
    const fs::path folder = std::move(folders.back());
    folders.pop_back();
    if (!open_to_owner(folder)) continue;
    std::error_code error;
    for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
         at.increment(error)) {
      std::error_code ignored;
      if (fs::is_directory(at->symlink_status(ignored))) folders.push_back(at->path());
    }
  }
}

}  // namespace

Result<void> remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    open_all_to_owner(folder);
    error.clear();
    fs::remove_all(folder, error);
  }
  if (!error) return {};
  return Failure{describe_errno("remove", folder, error.value())};
}

}  // namespace tailrace::sandbox
