// A reward worker: scores finished episodes that the scheduler sends as Verify, answers each with a
// Verdict.
//
// A verdict without a reward means that the verifier could not decide (no such verifier, evidence
// that it cannot read, a score that is not finite, more time than the deadline); the scheduler
// retries it with a bound. Verifiers are bounded in time by themselves; the deadline is measured
// and not enforced, so that one that hangs is found by its lease.
//
// Thread: run() takes over the caller's thread; request_stop() any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "core/wire/worker_client.h"
#include "reward/verifier.h"

namespace tailrace {

struct RewardWorkerOptions {
  std::string worker = "reward-0";  // unique in the run
  std::string endpoint;             // of the scheduler
  LinkOptions link;
  int64_t slots = 64;                         // requests that may wait here
  std::chrono::milliseconds deadline{5000};   // of one score
  std::chrono::milliseconds patience{60000};  // ends when the scheduler is silent for so long
};

class RewardWorker {
 public:
  // Borrows the verifiers and the clock.
  RewardWorker(const VerifierRegistry& verifiers, const Clock& clock, RewardWorkerOptions options);

  // Works until Shutdown, a stop, or the end of its patience; returns which, for a log line.
  std::string run();
  void request_stop() { stop_ = true; }

  // The answer to one request; never throws.
  Verdict judge(const Verify& request) const;

 private:
  const VerifierRegistry& verifiers_;
  const Clock& clock_;
  RewardWorkerOptions options_;
  std::atomic<bool> stop_ = false;
};

}  // namespace tailrace
