#include "core/weights/version_keeper.h"

#include <algorithm>
#include <utility>

#include "core/weights/tidy_versions.h"
#include "kernels/base/pulse.h"

namespace tailrace {

VersionKeeper::VersionKeeper(std::filesystem::path folder, PolicyId policy, VersionKeeping options)
    : folder_(std::move(folder)),
      policy_(policy),
      options_(std::move(options)),
      thread_([this, pulse = bound_pulse()](const std::stop_token& stop) {
        const PulseScope scope(pulse);
        run(stop);
      }) {}

VersionKeeper::~VersionKeeper() = default;

void VersionKeeper::published(int64_t version) {
  {
    MutexLock lock(mu_);
    newest_ = version;
  }
  changed_.notify_all();
}

void VersionKeeper::release(int64_t below, int64_t fetched_from, int64_t evaluated) {
  {
    MutexLock lock(mu_);
    if (below <= below_ && fetched_from <= fetched_from_ && evaluated == evaluated_) return;
    below_ = std::max(below_, below);
    fetched_from_ = std::max(fetched_from_, fetched_from);
    evaluated_ = evaluated;
    asked_ = true;
  }
  changed_.notify_all();
}

void VersionKeeper::wait() {
  MutexLock lock(mu_);
  changed_.wait(lock.native(), [this] { return (!asked_ || newest_ < 0) && !busy_; });
}

void VersionKeeper::run(const std::stop_token& stop) {
  while (true) {
    Retention retention{.anchor_interval = options_.anchor_interval};
    int64_t newest = -1;
    {
      MutexLock lock(mu_);
      changed_.wait(lock.native(), stop, [this] { return asked_ && newest_ >= 0; });
      if (stop.stop_requested()) return;
      asked_ = false;
      busy_ = true;
      newest = newest_;
      retention.below = below_;
      retention.fetched_from = fetched_from_;
      retention.evaluated = evaluated_;
    }
    const auto tidied = tidy_versions(folder_, policy_, newest, retention, stop);
    if (!tidied) options_.on_failure(tidied.failure().message);
    {
      MutexLock lock(mu_);
      busy_ = false;
    }
    changed_.notify_all();
  }
}

}  // namespace tailrace
