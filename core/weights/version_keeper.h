// Keeps the folder of a policy's versions small, beside the trainer: what is published takes disk,
// and what nobody needs any more, as the scheduler says, gives it back (tidy_versions.h).
//
// Thread: owns one, which tidies and beats for whoever made the keeper; all calls any thread.
// Close: the destructor gives up what is under way, which the next keeper does again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "core/base/ids.h"
#include "core/weights/version_folder.h"
#include "kernels/base/mutex.h"

namespace tailrace {

struct VersionKeeping {
  int64_t anchor_interval = 10;  // Retention
  // Called on the keeper's thread with what cannot be done; the folder grows until it can.
  std::function<void(const std::string&)> on_failure = [](const std::string&) {};
};

class VersionKeeper {
 public:
  VersionKeeper(std::filesystem::path folder, PolicyId policy, VersionKeeping options);
  ~VersionKeeper();
  VersionKeeper(const VersionKeeper&) = delete;

  // This version lies there now.
  void published(int64_t version);
  // The scheduler's word: versions below `below` are needed by nobody, and payloads below
  // `fetched_from` are fetched by nobody, but for that of `evaluated` (-1: none). Less than before
  // is no news.
  void release(int64_t below, int64_t fetched_from, int64_t evaluated = -1);
  void wait();  // until what was released is gone, for tests

 private:
  void run(const std::stop_token& stop);

  const std::filesystem::path folder_;
  const PolicyId policy_;
  const VersionKeeping options_;

  Mutex mu_;
  std::condition_variable_any changed_;
  int64_t newest_ TR_GUARDED_BY(mu_) = -1;
  int64_t below_ TR_GUARDED_BY(mu_) = 0, fetched_from_ TR_GUARDED_BY(mu_) = 0;
  int64_t evaluated_ TR_GUARDED_BY(mu_) = -1;
  bool asked_ TR_GUARDED_BY(mu_) = false, busy_ TR_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: uses what is above
};

}  // namespace tailrace
