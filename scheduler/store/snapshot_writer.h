// Writes the snapshot of a pair of files on a thread of its own, while the owner's events go on in
// the pair's other file.
//
// Two steps. The events that were left behind, and the names of the new pair, reach the disk: from
// then on what is synced in the new file has all before it. Then the snapshot, and what it makes
// superfluous goes.
//
// A disk that stands still has a patience of its own and is named; who waits for it here beats its
// own pulse meanwhile (kernels/base/pulse.h).
//
// Thread: owns one; all calls belong to the owner's. One job at a time.
// Close: finishes the job, then joins.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "core/base/bounded_queue.h"
#include "core/base/result.h"
#include "core/run/stall_watch.h"
#include "kernels/base/mutex.h"
#include "kernels/base/pulse.h"
#include "scheduler/state/state.h"
#include "scheduler/store/record_file.h"

namespace tailrace::scheduler {

class SnapshotWriter {
 public:
  struct Job {
    int64_t number = 0;  // of the new pair
    std::unique_ptr<const State> state;
    RecordFile left;  // the events up to `state`
  };

  // `keep_all`: nothing is superfluous.
  SnapshotWriter(std::filesystem::path directory, bool keep_all,
                 std::chrono::milliseconds patience);
  ~SnapshotWriter() { inbox_.close(); }
  SnapshotWriter(const SnapshotWriter&) = delete;

  // Only when idle.
  void begin(Job job);
  bool idle() const;

  // A Failure: the disk took a job's files not, or stands still. Wants to be called every now and
  // then; does not wait.
  Result<void> look();
  // Wait for the first step, and for both.
  Result<void> wait_for_events();
  Result<void> wait();

 private:
  enum class Stage : uint8_t { kIdle, kEvents, kSnapshot };
  void loop();
  Result<void> write(Job& job);
  void enter(Stage stage, const std::string& failure = "");
  Stage stage() const;
  template <class Done>
  Result<void> wait_until(const Done& done);

  const std::filesystem::path directory_;
  const bool keep_all_;
  const std::chrono::milliseconds patience_;
  BoundedQueue<Job> inbox_{1};
  mutable Mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ TR_GUARDED_BY(mutex_) = Stage::kIdle;
  std::string failure_ TR_GUARDED_BY(mutex_);  // the first; it stays
  Pulse progress_;                             // of the writer's thread
  StallWatch watch_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::jthread thread_;  // last: starts after, and is joined before, all that it uses
};

}  // namespace tailrace::scheduler
