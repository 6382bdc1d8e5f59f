// The store of bodies on a thread of its own, so that neither its disk nor the reading of tokens
// stands in the scheduler's way. Nobody else decodes a trajectory in the scheduler's process.
//
// A request goes into a bounded inbox and is answered by a call of `then` on the owner's thread, in
// the order of the requests.
//
// A disk that stands still has a patience of its own, and failure() then names it. The owner's
// pulse (kernels/base/pulse.h) beats while it waits for the store: it is not the one that stands
// still.
//
// Thread: owns one; all calls belong to the owner's.
// Close: finishes what is in the inbox, without answers, then joins.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/bounded_queue.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/run/stall_watch.h"
#include "core/trajectory/body_limits.h"
#include "core/trajectory/trajectory.h"
#include "kernels/base/mutex.h"
#include "kernels/base/pulse.h"
#include "scheduler/store/trajectory_store.h"

namespace tailrace::scheduler {

class StoreActor {
 public:
  // A body of the largest size (core/wire/frame.h), or many of the usual.
  static constexpr int64_t kInboxBytes = int64_t{256} << 20;

  // `patience`: with a store that has something to do and makes no progress. `wake` is called, on
  // the actor's thread, when an answer waits for run_answers(). `limits`: of what put() takes.
  // `inbox_bytes`: of the bodies that wait to be stored.
  StoreActor(TrajectoryStore store, std::chrono::milliseconds patience, std::function<void()> wake,
             BodyLimits limits = {}, int64_t inbox_bytes = kInboxBytes);
  ~StoreActor();
  StoreActor(const StoreActor&) = delete;

  // Proves an encoded trajectory, tokens and all, and that the trainer will take it; then stores it
  // as it is.
  struct Stored {
    bool ok() const { return refused.empty() && failure.empty(); }
    std::string refused;  // no sound trajectory, or beyond the limits: its sender's fault
    std::string failure;  // of the disk
  };
  void put(const BodyId& id, std::vector<std::byte> body, std::function<void(Stored)> then);

  // Stores a verifier's metrics for a stored body, beside the reward: read back as the body's own.
  // `then` hears why the disk failed; empty: it did not.
  void put_verdict(const BodyId& id, MetricList metrics,
                   std::function<void(const std::string& failure)> then);

  struct Described {
    TrajectoryHeader header;
    TrajectoryStore::Entry entry;
    std::string unread;  // why what its verifier measured is missing; empty: it is not
  };
  // A body that is not there or does not read back: which, and why.
  struct Lost {
    BodyId body;
    std::string reason;
  };
  template <class T>
  using Reads = std::function<void(std::vector<T>&&, const std::vector<Lost>&)>;
  // One for each id that reads back, in their order.
  void describe(std::vector<BodyId> ids, Reads<Described> then);
  void decode(std::vector<BodyId> ids, Reads<Trajectory> then);

  // Reads the bodies' bytes, one behind the other, at most `max_bytes` from `offset` on.
  void read(std::vector<BodyId> ids, int64_t offset, int64_t max_bytes, Reads<std::byte> then);

  void release(std::vector<BodyId> bodies);

  // Calls `then` once all that was asked before is answered.
  void after(std::function<void()> then);

  // Waits until all that was put before is on disk.
  Result<void> sync();
  // The same without waiting.
  void sync(std::function<void(const Result<void>&)> then);

  // Calls `then` of what has been answered. Wants to be called every now and then: it also looks
  // whether the store makes progress.
  void run_answers();
  // Why the last lost body was lost: the file, and why it does not read back. Empty: none was.
  const std::string& why_lost() const { return why_lost_; }
  // Nothing is asked that was not answered.
  bool idle() const { return unanswered_ == 0; }
  // Why requests can no longer be taken; empty: they can.
  const std::string& failure() const { return failure_; }

 private:
  using Answer = std::function<void()>;                 // called by the owner; may be empty
  using Job = std::function<Answer(TrajectoryStore&)>;  // called by the actor
  void post(Job job, int64_t bytes = 0);
  template <class T>
  Answer answer(Reads<T> then, std::vector<T> found, std::vector<Lost> lost);
  void loop();
  bool look();

  TrajectoryStore store_;
  // The body of the last read(): a large one is asked for piece by piece.
  std::optional<std::pair<BodyId, std::vector<std::byte>>> recent_;
  std::function<void()> wake_;
  const BodyLimits limits_;
  BoundedQueue<Job> inbox_;
  Mutex mutex_;
  std::vector<Answer> answers_ TR_GUARDED_BY(mutex_);
  int64_t unanswered_ = 0;  // jobs
  std::string failure_, why_lost_;
  std::chrono::milliseconds patience_;
  Pulse progress_;  // of the actor's thread
  StallWatch watch_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::jthread thread_;  // last: starts after, and is joined before, all that it uses
};

}  // namespace tailrace::scheduler
