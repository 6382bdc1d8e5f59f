// The scheduler as a process: it receives messages, keeps bodies and events, applies decide() and
// performs the actions.
//
//   workers -> Inbox -> events -> decide() -> journal -> Outbox -> workers
//                 \-> StoreActor <-> bodies <-/
//
// For each batch of messages: bodies to the store, events to the journal and decide(), one commit,
// and only then the actions and the acknowledgements. A service that is killed anywhere in between
// comes back from the journal, gives every outstanding action again, and gets again what it had not
// acknowledged (law 12).
//
// Files: RUN/journal, RUN/trajectories, RUN/metrics.jsonl, RUN/samples.jsonl, RUN/timeline.jsonl.
//
// Thread: run() belongs to the thread that calls it. request_stop() any, also a signal handler.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/run/log.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/run/status_page.h"
#include "core/trajectory/body_limits.h"
#include "core/trajectory/sample_rows.h"
#include "core/wire/link.h"
#include "scheduler/state/options.h"

namespace tailrace::scheduler {

struct ServiceOptions {
  Config config;
  std::string endpoint;  // where workers find it
  RunPaths paths;
  std::vector<std::string> datasets;  // names of the datasets; of one alone none is needed
  MetricList facts = {};              // numbers that each row of a step bears as they are
  TokenText text = {};                // for samples.jsonl; empty: its rows have ids alone
  std::string judge = {};             // metric by which groups are judged; empty: the reward
  wire::LinkOptions link;
  StorageOptions storage;
  BodyLimits bodies;  // a result beyond them is its worker's fault
  // With a disk that takes and gives no bodies; then the run ends by its name. Not a part of
  // run.stall_seconds: the scheduler's own pulse beats meanwhile.
  std::chrono::milliseconds disk_patience{40'000};
  int64_t num_samples = 4;                        // episodes written for people at an evaluation
  std::chrono::milliseconds flush_timeout{2000};  // for workers to hear that it is over
  Time no_progress{std::chrono::seconds(2)};      // of a rollout worker (law 8.6); 0: for ever
  std::chrono::seconds watchdog{30};              // of silence, then who waits for what is logged
  std::function<void(const Waits&)> on_waits = [](const Waits&) {};  // about once a second
  std::function<void()> on_begun = [] {};  // the first install of this process's time
};

struct ServiceResult {
  enum class End {
    kDone,     // all steps, or all data
    kStopped,  // request_stop(); the run can be continued
    kFailed,   // `message` says what a person must mend; the run can be continued then
  };
  End end = End::kDone;
  std::string message;
  int64_t version = -1;  // of the weights at the end
};

class Service {
 public:
  // Restores the run from paths.journal(), or begins one. Throws UserError: files that cannot be
  // read or written, or a config that does not fit the run. Borrows clock and log.
  Service(ServiceOptions options, const Clock& clock, Log& log);
  ~Service();
  Service(const Service&) = delete;

  ServiceResult run();
  void request_stop() { stop_.store(true); }

 private:
  struct Impl;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::scheduler
