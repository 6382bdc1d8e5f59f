#include "cli/view/line_tail.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"

namespace tailrace {
namespace {

// From `offset` to the end that the file has now; short where it is cut meanwhile.
std::string read_from(int descriptor, int64_t offset, int64_t end) {
  std::string text(static_cast<size_t>(end - offset), '\0');
  size_t used = 0;
  while (used < text.size()) {
    const ssize_t got = ::pread(descriptor, text.data() + used, text.size() - used,
                                static_cast<off_t>(offset) + static_cast<off_t>(used));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    used += static_cast<size_t>(got);
  }
  text.resize(used);
  return text;
}

}  // namespace

LineTail::LineTail(std::filesystem::path file, int64_t last_bytes) : file_(std::move(file)) {
  if (last_bytes == 0)
    poll();
  else if (last_bytes != kAll)
    skip(last_bytes);
}

void LineTail::skip(int64_t bytes) {
  struct stat status {};
  if (!follow() || ::fstat(open_.get(), &status) != 0) return;
  const int64_t size = status.st_size;
  // Back to where a whole line begins within what is read.
  for (int64_t window = bytes; size - offset_ > window; window *= 2) {
    const std::string text = read_from(open_.get(), size - window, size);
    const size_t begin = text.find('\n');
    const size_t end = begin == text.npos ? text.npos : text.find('\n', begin + 1);
    if (end == text.npos) continue;
    offset_ = size - window + static_cast<int64_t>(begin) + 1;
    return;
  }
}

void LineTail::restart() {
  known_.clear();
  offset_ = 0;
}

// False: there is none now.
bool LineTail::follow() {
  struct stat named {
  }, own{};
  // To open a pipe would wait for its writer, and a folder has no size.
  if (::stat(file_.c_str(), &named) != 0 || !S_ISREG(named.st_mode)) return false;
  if (open_.is_open() && ::fstat(open_.get(), &own) == 0 && own.st_dev == named.st_dev &&
      own.st_ino == named.st_ino)
    return true;
  FileDescriptor next(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!next.is_open()) return false;
  rewinds_ += open_.is_open();
  open_ = std::move(next);
  offset_ = 0;
  return true;
}

std::vector<std::string> LineTail::poll() {
  struct stat status {};
  if (!follow() || ::fstat(open_.get(), &status) != 0) return {};
  const int64_t size = status.st_size;
  if (size < offset_) {  // lines were taken back
    offset_ = size;
    ++rewinds_;
  }
  if (offset_ == size) return {};
  const std::string text = read_from(open_.get(), offset_, size);
  std::vector<std::string> found;
  LineReader lines(text);
  while (auto line = lines.next()) {
    // The writer is at it; the line comes whole with a later poll.
    if (!line->complete) break;
    // The writer ends a line with one byte, which `text` lacks.
    offset_ += static_cast<int64_t>(line->text.size()) + 1;
    // A writer that puts a file back, or takes lines back, writes lines again that were shown
    // already.
    if (known_.insert(std::hash<std::string_view>()(line->text)).second)
      found.emplace_back(line->text);
  }
  return found;
}

}  // namespace tailrace
