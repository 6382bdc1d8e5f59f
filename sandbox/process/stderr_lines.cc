#include "sandbox/process/stderr_lines.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "core/base/join_texts.h"
#include "core/base/random.h"

namespace tailrace::sandbox {
namespace {

constexpr size_t kLongestLine = 400, kKeptLines = 4;
// The limit of a message: the reason of a failed verdict is kept to its 400th byte.
constexpr size_t kLongestLast = 240;
// Limits on the log: so many lines at once, and from then on one in each period.
constexpr int64_t kAtOnce = 20;
constexpr Time kPeriod = std::chrono::seconds(2);
// Lines that may belong to what an exception says.
constexpr int kMostBehind = 8;

bool is_power_of_ten(int64_t number) {
  while (number > 1 && number % 10 == 0) number /= 10;
  return number == 1;
}

}  // namespace

StderrLog::StderrLog(std::shared_ptr<ToldTracebacks> known, Hear hears)
    : limit(kAtOnce, kPeriod), told(std::move(known)), hear(std::move(hears)) {}

void StderrLines::take(std::string_view bytes, Time now) {
  for (const char c : bytes) {
    if (c == '\n') {
      finish_line(now);
    } else if (line_.size() < kLongestLine) {
      line_ += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
    }
  }
}

void StderrLines::end(Time now) {
  if (!line_.empty()) finish_line(now);
  if (traceback_.is_open()) close_traceback(now);
  if (num_unsaid_ > 0) write(fmt::format("{} more lines", num_unsaid_));
  num_unsaid_ = 0;
}

std::string StderrLines::last() const {
  std::string joined = join_texts(std::vector(last_.begin(), last_.end()), " | ");
  if (joined.size() <= kLongestLast) return joined;
  // Its end says more than its beginning. No character is cut.
  size_t begin = joined.size() - kLongestLast;
  while (begin < joined.size() && (static_cast<unsigned char>(joined[begin]) & 0xc0) == 0x80)
    ++begin;
  return "..." + joined.substr(begin);
}

// In one write, as other threads and processes write to the same log.
void StderrLines::write(const std::string& text) const {
  if (log_ != nullptr && log_->hear) return log_->hear(text);
  if (log_ != nullptr) (void)std::fputs(fmt::format("{}: {}\n", program_, text).c_str(), stderr);
}

void StderrLines::finish_line(Time now) {
  std::string line = std::exchange(line_, {});
  if (line.find_first_not_of(" \t") == std::string::npos) return;
  if (traceback_.is_open() || Traceback::begins(line)) {
    if (traceback_.take(std::move(line))) return finish_traceback(now);
    if (traceback_.is_too_long()) close_traceback(now);
    return;
  }
  keep(line);
  if (!is_known_behind(line)) tell(line, now);
}

void StderrLines::keep(std::string line) {
  last_.push_back(std::move(line));
  if (last_.size() > kKeptLines) last_.pop_front();
}

void StderrLines::tell(const std::string& line, Time now) {
  if (may_log(1, now)) write(line);
}

bool StderrLines::may_log(int64_t num_lines, Time now) {
  if (log_ == nullptr || !log_->limit.take(now)) {
    num_unsaid_ += num_lines;
    return false;
  }
  if (const int64_t unsaid = std::exchange(num_unsaid_, 0); unsaid > 0)
    write(fmt::format("{} more lines", unsaid));
  return true;
}

// Without its exception: lines like others.
void StderrLines::close_traceback(Time now) {
  for (const std::string& line : traceback_.close()) {
    keep(line);
    tell(line, now);
  }
}

void StderrLines::finish_traceback(Time now) {
  const std::vector<std::string> lines = traceback_.close();
  const std::string summary = summary_of_traceback(lines);
  keep(summary);
  if (log_ != nullptr) tell_traceback(lines, summary, now);
}

// One unit of the limit, as half of it is of no use.
void StderrLines::tell_traceback(const std::vector<std::string>& lines, const std::string& summary,
                                 Time now) {
  const uint64_t frames = digest_of_frames(lines);
  const bool is_new = log_->told->count(frames) == 1;
  behind_ = mix({frames, std::hash<std::string>()(lines.back())});
  num_behind_ = kMostBehind;
  const int64_t count = log_->told->count(behind_);
  if (is_new) {
    if (!may_log(std::ssize(lines), now)) {
      log_->told->forget(frames);
      return;
    }
    for (const std::string& line : lines) write(line);
  } else if (is_power_of_ten(count)) {
    const std::string so_far = count > 1 ? fmt::format(", {} times so far", count) : "";
    tell(fmt::format("{}, with the traceback that is above{}", summary, so_far), now);
  }
}

// An exception may say more than a line.
bool StderrLines::is_known_behind(const std::string& line) {
  if (log_ == nullptr || num_behind_ == 0) return false;
  --num_behind_;
  behind_ = mix({behind_, std::hash<std::string>()(line)});
  return log_->told->count(behind_) > 1;
}

}  // namespace tailrace::sandbox
