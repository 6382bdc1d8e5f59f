#include "cli/view/metrics_tail.h"

#include <cerrno>
#include <functional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

MetricsTail::MetricsTail(std::filesystem::path file, bool from_start) : file_(std::move(file)) {
  if (!from_start) poll();
}

// False: there is none now.
bool MetricsTail::follow() {
  struct stat named {
  }, own{};
  // To open a pipe would wait for its writer, and a folder has no size.
  if (::stat(file_.c_str(), &named) != 0 || !S_ISREG(named.st_mode)) return false;
  if (open_.is_open() && ::fstat(open_.get(), &own) == 0 && own.st_dev == named.st_dev &&
      own.st_ino == named.st_ino)
    return true;
  FileDescriptor next(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!next.is_open()) return false;
  open_ = std::move(next);
  offset_ = 0;
  return true;
}

std::vector<MetricsRow> MetricsTail::poll() {
  struct stat status {};
  if (!follow() || ::fstat(open_.get(), &status) != 0) return {};
  const int64_t size = status.st_size;
  offset_ = std::min(offset_, size);  // rows were taken back
  if (offset_ == size) return {};
  const std::string text = read_from(open_.get(), offset_, size);
  std::vector<MetricsRow> rows;
  LineReader lines(text);
  while (auto line = lines.next()) {
    // The writer is at it; the line comes whole with a later poll.
    if (!line->complete) break;
    // The writer ends a line with one byte, which `text` lacks.
    offset_ += static_cast<int64_t>(line->text.size()) + 1;
    // A writer that puts a file back, or takes rows back, writes lines again that were shown
    // already.
    if (!known_.insert(std::hash<std::string_view>()(line->text)).second) continue;
    if (auto row = parse_metrics_row(line->text)) rows.push_back(std::move(row).value());
  }
  return rows;
}

}  // namespace tailrace
