#include "sandbox/command/stderr_lines.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tailrace::sandbox {
namespace {

constexpr size_t kLongestLine = 400, kKeptLines = 4;
// Of a message: the reason of a failed verdict is kept to its 400th byte.
constexpr size_t kLongestLast = 240;
// Of the log: so many lines at once, and from then on one in each period.
constexpr int64_t kAtOnce = 20;
constexpr Time kPeriod = std::chrono::seconds(2);

}  // namespace

RateLimit StderrLines::log_limit() { return {kAtOnce, kPeriod}; }

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
  if (num_unsaid_ > 0) log(fmt::format("{} more lines", num_unsaid_));
  num_unsaid_ = 0;
}

std::string StderrLines::last() const {
  std::string joined = fmt::format("{}", fmt::join(last_, " | "));
  if (!line_.empty()) joined += (joined.empty() ? "" : " | ") + line_;
  if (joined.size() <= kLongestLast) return joined;
  // Its end says more than its beginning. No character is cut.
  size_t begin = joined.size() - kLongestLast;
  while (begin < joined.size() && (static_cast<unsigned char>(joined[begin]) & 0xc0) == 0x80)
    ++begin;
  return "..." + joined.substr(begin);
}

// In one write, as other threads and processes write to the same log.
void StderrLines::log(const std::string& text) const {
  if (limit_ != nullptr) (void)std::fputs(fmt::format("{}: {}\n", program_, text).c_str(), stderr);
}

void StderrLines::finish_line(Time now) {
  const std::string line = std::exchange(line_, {});
  if (line.find_first_not_of(" \t") == std::string::npos) return;
  last_.push_back(line);
  if (last_.size() > kKeptLines) last_.pop_front();
  if (limit_ == nullptr || !limit_->take(now)) {
    ++num_unsaid_;
    return;
  }
  if (const int64_t unsaid = std::exchange(num_unsaid_, 0); unsaid > 0)
    log(fmt::format("{} more lines", unsaid));
  log(line);
}

}  // namespace tailrace::sandbox
