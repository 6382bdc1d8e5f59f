#include "core/weights/version_keeper.h"

#include <algorithm>
#include <utility>

namespace tailrace {
namespace {

// Payloads beyond those that are kept: where nothing is released they wait for each other, and a
// trainer that is faster than its disk waits for them.
constexpr int64_t kWorthTidying = 2, kTooMany = 6;

}  // namespace

VersionKeeper::VersionKeeper(std::filesystem::path folder, PolicyId policy, VersionKeeping options)
    : folder_(std::move(folder)),
      policy_(policy),
      options_(std::move(options)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

VersionKeeper::~VersionKeeper() = default;

void VersionKeeper::published(int64_t version) {
  const int64_t beyond = num_payloads() - options_.keep;
  {
    MutexLock lock(mu_);
    newest_ = version;
    asked_ = asked_ || beyond >= kWorthTidying;
  }
  changed_.notify_all();
  if (beyond >= kTooMany) wait();
}

void VersionKeeper::release(int64_t below) {
  {
    MutexLock lock(mu_);
    if (below <= below_) return;
    below_ = below;
    asked_ = true;
  }
  changed_.notify_all();
}

void VersionKeeper::wait() {
  MutexLock lock(mu_);
  changed_.wait(lock.native(), [this] { return !asked_ && !busy_; });
}

int64_t VersionKeeper::num_payloads() const {
  return std::ranges::count_if(list_versions(folder_), [&](const StoredVersion& version) {
    return version.policy == policy_ && version.is_whole;
  });
}

void VersionKeeper::run(const std::stop_token& stop) {
  while (true) {
    Retention retention{.keep = options_.keep, .anchor_interval = options_.anchor_interval};
    int64_t newest = -1;
    {
      MutexLock lock(mu_);
      changed_.wait(lock.native(), stop, [this] { return asked_ && newest_ >= 0; });
      if (stop.stop_requested()) return;
      asked_ = false;
      busy_ = true;
      newest = newest_;
      retention.below = below_;
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
