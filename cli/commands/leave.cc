#include "cli/commands/leave.h"

#include <utility>

#include <unistd.h>

#include "cli/view/progress.h"
#include "core/base/exit_code.h"

namespace tailrace {
namespace {

// One look may fail for another reason; the launch's own word comes sooner as a rule.
constexpr int kMissed = 3;

}  // namespace

Signals::Signals(std::initializer_list<int> signals) {
  sigemptyset(&set_);
  for (int signal : signals) sigaddset(&set_, signal);
  ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

bool Signals::wait() const {
  const timespec piece{0, 100'000'000};
  return ::sigtimedwait(&set_, nullptr, &piece) > 0;
}

Leave::Leave() : thread_([this](std::stop_token end) { run(end); }) {}

void Leave::set(std::function<bool()> goes_on) {
  MutexLock lock(mu_);
  goes_on_ = std::move(goes_on);
}

bool Leave::goes_on() {
  MutexLock lock(mu_);
  return !goes_on_ || goes_on_();
}

void Leave::run(const std::stop_token& end) {
  int missed = 0;
  while (!end.stop_requested()) {
    if (signals_.wait()) {
      if (asked_.exchange(true)) ::_exit(kExitInterrupted);
      show(stdout, "leaving: its work goes to others (once more ends at once)\n");
      source_.request_stop();
    }
    missed = goes_on() ? 0 : missed + 1;
    if (missed < kMissed) continue;
    over_.store(true);
    source_.request_stop();
  }
}

}  // namespace tailrace
