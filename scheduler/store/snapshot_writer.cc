#include "scheduler/store/snapshot_writer.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/base/time.h"
#include "kernels/base/check.h"
#include "scheduler/store/snapshot.h"

namespace tailrace::scheduler {
namespace {

// Between two looks at a disk that is waited for: far less than who watches the owner's pulse waits
// (run.stall_seconds).
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

SnapshotWriter::SnapshotWriter(std::filesystem::path directory, bool keep_all,
                               std::chrono::milliseconds patience)
    : directory_(std::move(directory)),
      keep_all_(keep_all),
      patience_(patience),
      watch_(patience),
      thread_([this] { loop(); }) {}

void SnapshotWriter::begin(Job job) {
  TR_CHECK(idle(), "snapshot {} is to be written while another one is", job.number);
  watch_ = StallWatch(patience_);
  enter(Stage::kEvents);
  TR_CHECK(inbox_.push_for(job, std::chrono::nanoseconds(0)));
}

void SnapshotWriter::loop() {
  const PulseScope pulse(progress_);
  while (auto job = inbox_.pop()) {
    std::string failure;
    // Nothing is thrown across a thread.
    try {
      if (auto written = write(*job); !written) failure = written.failure().message;
    } catch (const std::exception& error) {
      failure =
          fmt::format("{}: {}", snapshot_path(directory_, job->number).string(), error.what());
    }
    // The copy of the State is freed before the next snapshot may begin, so that there are never
    // two.
    job.reset();
    enter(Stage::kIdle, failure);
  }
}

Result<void> SnapshotWriter::write(Job& job) {
  // The events that were left come first: commit() waits for these alone (wait_for_events()), and a
  // snapshot of a large run takes far longer.
  if (auto synced = job.left.sync(); !synced) return synced;
  beat();
  if (auto synced = sync_directory(directory_); !synced) return synced;
  job.left = RecordFile();
  enter(Stage::kSnapshot);
  beat();
  auto written = write_snapshot(snapshot_path(directory_, job.number), *job.state);
  if (written && !keep_all_) remove_before(directory_, job.number);
  return written;
}

void SnapshotWriter::enter(Stage stage, const std::string& failure) {
  MutexLock lock(mutex_);
  stage_ = stage;
  if (failure_.empty()) failure_ = failure;
  changed_.notify_all();
}

SnapshotWriter::Stage SnapshotWriter::stage() const {
  MutexLock lock(mutex_);
  return stage_;
}

bool SnapshotWriter::idle() const { return stage() == Stage::kIdle; }

Result<void> SnapshotWriter::look() {
  // A thread that waits and looks again every now and then is well.
  beat();
  MutexLock lock(mutex_);
  if (!failure_.empty()) return Failure{failure_};
  const auto now = std::chrono::steady_clock::now();
  const auto elapsed = std::chrono::floor<std::chrono::milliseconds>(now - looked_);
  if (elapsed < kLook) return {};
  looked_ = now;
  if (stage_ == Stage::kIdle) {
    watch_ = StallWatch(patience_);
  } else if (watch_.look(progress_.beats(), elapsed)) {
    failure_ = fmt::format(
        "the disk of {} has taken and given nothing for {:.3g} s; look to it, then launch the run "
        "again",
        directory_.string(), seconds_of(patience_));
    return Failure{failure_};
  }
  return {};
}

template <class Done>
Result<void> SnapshotWriter::wait_until(const Done& done) {
  while (true) {
    if (auto well = look(); !well) return well;
    MutexLock lock(mutex_);
    if (done(stage_)) return failure_.empty() ? Result<void>() : Failure{failure_};
    changed_.wait_for(lock.native(), kLook);
  }
}

Result<void> SnapshotWriter::wait_for_events() {
  return wait_until([](Stage stage) { return stage != Stage::kEvents; });
}

Result<void> SnapshotWriter::wait() {
  return wait_until([](Stage stage) { return stage == Stage::kIdle; });
}

}  // namespace tailrace::scheduler
