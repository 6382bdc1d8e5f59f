#include "cli/plan/quiet_clock.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/base/clock.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Time that a task of the kernel stood in a queue for a core; 0 where the kernel does not say.
double queued_seconds(const fs::path& task) {
  std::ifstream stats(task / "schedstat");
  double running = 0, waiting = 0;  // nanoseconds
  return stats >> running >> waiting ? 1e-9 * waiting : 0;
}

double queued_seconds(int threads) {
  if (threads == 1) return queued_seconds(fs::path("/proc/thread-self"));
  double sum = 0;
  std::error_code ignored;
  for (const auto& task : fs::directory_iterator("/proc/self/task", ignored))
    sum += queued_seconds(task.path());
  return sum;
}

double cpu_seconds(int threads) {
  timespec time{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

QuietClock::QuietClock(int threads)
    : threads_(threads),
      begin_(steady_now()),
      waited_(queued_seconds(threads)),
      cpu_(cpu_seconds(threads)) {
  begin_ = steady_now();
}

double QuietClock::seconds() const {
  const double passed = seconds_of(steady_now() - begin_);
  // Several threads may wait at once, so that their waits together can be longer than the time that
  // passed. It was at least what each of them computed.
  const double least = (cpu_seconds(threads_) - cpu_) / threads_;
  const double waited = queued_seconds(threads_) - waited_;
  return std::min(passed, std::max(least, passed - waited));
}

}  // namespace tailrace
