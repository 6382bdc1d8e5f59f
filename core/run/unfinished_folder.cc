#include "core/run/unfinished_folder.h"

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// An empty folder may have the name: it is replaced. A link is no folder, whatever it points to.
void refuse_taken(const fs::path& out) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(out, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status))
    throw UserError("{} exists and is no folder. Name a new folder.", out.string());
  if (!fs::is_empty(out, error))
    throw UserError("{} exists and is not empty. Name a new folder.", out.string());
}

}  // namespace

UnfinishedFolder::UnfinishedFolder(fs::path out)
    : out_(std::move(out)), path_(out_.string() + kUnfinished) {
  refuse_taken(out_);
  std::error_code error;
  if (out_.has_parent_path()) fs::create_directories(out_.parent_path(), error);
  if (error)
    throw UserError("cannot make the folder {}: {}", out_.parent_path().string(), error.message());
  if (::mkdir(path_.c_str(), 0777) == 0) return;
  if (errno == EEXIST)
    throw UserError(
        "{} exists: somebody is writing it, or one that was killed has left it, or it is yours. "
        "Wait for them, or remove it.",
        path_.string());
  throw UserError("{}", describe_errno("make the folder", path_, errno));
}

UnfinishedFolder::~UnfinishedFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(path_, ignored);
}

// A folder replaces an empty folder, and neither a file nor a link.
void UnfinishedFolder::publish() {
  if (::rename(path_.c_str(), out_.c_str()) != 0) {
    const int cause = errno;
    refuse_taken(out_);
    throw UserError("{}", describe_errno("rename to " + out_.string(), path_, cause));
  }
  published_ = true;
}

}  // namespace tailrace
