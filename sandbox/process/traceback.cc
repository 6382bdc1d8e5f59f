#include "sandbox/process/traceback.h"

#include <atomic>
#include <functional>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

namespace tailrace::sandbox {
namespace {

constexpr std::string_view kBegin = "Traceback (most recent call last):";
constexpr std::string_view kFrame = "File \"", kLine = "\", line ";
constexpr size_t kMostLines = 200;
constexpr size_t kMostTexts = 1024;

bool is_indented(std::string_view line) { return line.starts_with(' ') || line.starts_with('\t'); }

// "/a/maze.py" and 3 of `File "/a/maze.py", line 3, in step`; an empty path of any other line.
struct Frame {
  std::string_view path, number;
};
Frame frame_of(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t|+");
  if (begin == line.npos || !line.substr(begin).starts_with(kFrame)) return {};
  line.remove_prefix(begin + kFrame.size());
  const size_t end = line.find(kLine);
  if (end == line.npos) return {};
  const std::string_view rest = line.substr(end + kLine.size());
  return {line.substr(0, end), rest.substr(0, rest.find_first_not_of("0123456789"))};
}

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Whether a file is of Python, or of a package that somebody else has written.
bool is_foreign(std::string_view path) {
  return path.starts_with('<') || path.find("/lib/python") != path.npos ||
         path.find("site-packages") != path.npos || path.find("dist-packages") != path.npos;
}

}  // namespace

// A source that cannot be compiled has one frame without the line before it.
bool Traceback::begins(std::string_view line) {
  return line.ends_with(kBegin) || (is_indented(line) && !frame_of(line).path.empty());
}

bool Traceback::take(std::string line) {
  const bool is_last = is_open() && !is_indented(line);
  lines_.push_back(std::move(line));
  return is_last;
}

bool Traceback::is_too_long() const { return lines_.size() >= kMostLines; }

std::vector<std::string> Traceback::close() { return std::exchange(lines_, {}); }

std::string summary_of_traceback(const std::vector<std::string>& lines) {
  Frame place;
  for (const std::string& line : lines) {
    const Frame frame = frame_of(line);
    if (!frame.path.empty() &&
        (place.path.empty() || is_foreign(place.path) || !is_foreign(frame.path)))
      place = frame;
  }
  if (place.path.empty()) return lines.back();
  return fmt::format("{} ({}:{})", lines.back(), name_of(place.path), place.number);
}

uint64_t digest_of_frames(const std::vector<std::string>& lines) {
  std::string frames;
  for (const std::string& line : lines)
    if (const Frame frame = frame_of(line); !frame.path.empty())
      frames += fmt::format("{}:{}\n", name_of(frame.path), frame.number);
  return std::hash<std::string>()(frames + lines.back().substr(0, lines.back().find(':')));
}

struct ToldTracebacks::Row {
  std::atomic<uint64_t> digest;  // 0: nobody's
  std::atomic<int64_t> count;
};

// The memory begins as zeros, which rows without a text are.
ToldTracebacks::ToldTracebacks()
    : rows_(static_cast<Row*>(::mmap(nullptr, kMostTexts * sizeof(Row), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  if (rows_ == MAP_FAILED) throw std::bad_alloc();
}

ToldTracebacks::~ToldTracebacks() { ::munmap(rows_, kMostTexts * sizeof(Row)); }

ToldTracebacks::Row* ToldTracebacks::find(uint64_t digest) const {
  if (digest == 0) digest = 1;
  for (Row& row : std::span(rows_, kMostTexts)) {
    uint64_t known = 0;
    if (row.digest.compare_exchange_strong(known, digest) || known == digest) return &row;
  }
  return nullptr;
}

int64_t ToldTracebacks::count(uint64_t digest) {
  Row* row = find(digest);
  return row == nullptr ? 1 : ++row->count;
}

void ToldTracebacks::forget(uint64_t digest) {
  if (Row* row = find(digest)) row->count = 0;
}

}  // namespace tailrace::sandbox
