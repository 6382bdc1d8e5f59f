// A reward worker: scores finished episodes that the scheduler sends as Verify, answers each with a
// Verdict.
//
// A verdict without a reward means that the verifier could not decide (no such verifier, evidence
// that it cannot read, a score that is not finite, no answer within the deadline); the scheduler
// retries it with a bound. A verifier that hangs is abandoned with its thread, and the worker goes
// on with another.
//
// Thread: run() takes over the caller's thread, verifiers run on threads of their own;
// request_stop() any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/wire/worker_client.h"
#include "reward/registry.h"

namespace tailrace {

struct RewardWorkerOptions {
  std::string worker = "reward-0";  // unique in the run
  bool joined = false;              // these four as wire::Hello has them
  std::string hardware = "cpu";     // what verifiers run on
  std::string cluster = {}, host = {};
  uint64_t incarnation = 0;  // 0: the WorkerClient chooses one
  wire::Endpoint endpoint;   // of the scheduler
  wire::LinkOptions link;
  int threads = 8;  // scores at once, and requests that it takes: none waits and spends its time
  Time deadline = worker_deadline(kVerifySeconds);  // of one score
  Time start{};  // a verifier may take so much longer where a program of it has to start
  std::chrono::milliseconds patience{60000};  // ends when the scheduler is silent for so long
};

class RewardWorker {
 public:
  struct Ending {
    std::string reason;  // for a log line
    bool clean = true;   // false: the scheduler is silent, or another process has this name
  };

  // Shares the verifiers with scores that are abandoned; borrows the clock.
  RewardWorker(std::shared_ptr<const VerifierRegistry> verifiers, const Clock& clock,
               RewardWorkerOptions options);

  // Works until Shutdown, a stop, or the end of its patience; returns which.
  Ending run();
  void request_stop() { stop_ = true; }

 private:
  std::shared_ptr<const VerifierRegistry> verifiers_;
  const Clock& clock_;
  RewardWorkerOptions options_;
  std::atomic<bool> stop_ = false;
};

}  // namespace tailrace
