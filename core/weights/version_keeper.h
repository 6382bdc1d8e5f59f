// Keeps the folder of a policy's versions small, beside the trainer: what is published takes disk,
// and what nobody needs any more, as the scheduler says, gives it back (version_folder.h).
//
// Thread: owns one, which tidies; all calls any thread.
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
  int64_t keep = 3;              // Retention
  int64_t anchor_interval = 10;  // Retention
  // Called on the keeper's thread with what cannot be done; the folder grows until it can.
  std::function<void(const std::string&)> on_failure = [](const std::string&) {};
};

class VersionKeeper {
 public:
  VersionKeeper(std::filesystem::path folder, PolicyId policy, VersionKeeping options);
  ~VersionKeeper();
  VersionKeeper(const VersionKeeper&) = delete;

  // This version lies there now. Tidies where payloads have become too many, as when nothing is
  // released; waits for that while they are far too many.
  void published(int64_t version);
  // Versions below are needed by nobody (the scheduler's word); less than before is no news.
  void release(int64_t below);
  void wait();  // until all is done that can be

 private:
  void run(const std::stop_token& stop);
  int64_t num_payloads() const;

  const std::filesystem::path folder_;
  const PolicyId policy_;
  const VersionKeeping options_;

  Mutex mu_;
  std::condition_variable_any changed_;
  int64_t newest_ TR_GUARDED_BY(mu_) = -1;
  int64_t below_ TR_GUARDED_BY(mu_) = 0;
  bool asked_ TR_GUARDED_BY(mu_) = false, busy_ TR_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: uses what is above
};

}  // namespace tailrace
