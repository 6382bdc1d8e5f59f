// Stands between this program and its files and counts the steps that it takes there: files made,
// bytes written, forced, renamed, removed. At one of them, which a test names, the process is
// killed or its disk is full. So every state is provoked that a kill -9 can leave on a disk.
//
// It replaces open, write, pwrite, fsync, fdatasync, rename, remove, unlink, unlinkat, link, mkdir
// and ftruncate of the whole program. Nothing is forced to the disk: it outlives a process anyhow.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <functional>

namespace tailrace {

enum class AtStep {
  kGoOn,
  kKill,  // with SIGKILL, in the middle of the bytes where they are written
  kFull,  // whatever takes space fails from here on, behind half of the bytes
};

class FileSteps {
 public:
  // Counts from 1. One at a time.
  explicit FileSteps(AtStep what = AtStep::kGoOn, int64_t step = 0);
  ~FileSteps();
  FileSteps(const FileSteps&) = delete;

  int64_t count() const;
};

// Runs `deed` in a process of its own, which is killed at this step.
enum class Ended { kKilled, kDone, kFailed };
struct InChild {
  Ended ended = Ended::kFailed;
  bool threw = false;
};
InChild run_and_kill(int64_t step, const std::function<bool()>& deed);

}  // namespace tailrace
