#include "sandbox/process/start_progress.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "core/run/run_directory.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

constexpr Time kSlowStart = 10s, kBetweenLines = 30s;

}  // namespace

std::optional<std::string> StartProgress::look(Time now, Time since, int64_t num_started,
                                               int64_t num_wanted) {
  if (since == Time::max()) {
    if (!told_) return std::nullopt;
    told_.reset();
    if (num_wanted == 0) return std::nullopt;
    return fmt::format("{} of {}{}", num_started, num_wanted, kHaveStarted);
  }
  if (now < next(since)) return std::nullopt;
  told_ = now;
  return fmt::format("{} of {}{}", num_started, num_wanted, kHaveStarted);
}

Time StartProgress::next(Time since) const {
  if (since == Time::max()) return Time::max();
  return told_ ? std::max(since + kSlowStart, *told_ + kBetweenLines) : since + kSlowStart;
}

}  // namespace tailrace::sandbox
