// Threads that compute, of the trainer and of the rollout workers that launch starts: by default no
// more of them are busy at once than this machine has cores.
//
// Where nothing is sampled for training while a step is trained, trainer and workers take turns,
// and each side has all cores; on the CPU an evaluation has its turn too. Else the trainer has half
// of them, and the workers share the others.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "cli/config/options.h"
#include "kernels/base/device.h"

namespace tailrace {

struct ThreadPlan {
  int64_t cores = 1;
  int64_t trainer = 1, ranks = 1;   // of each rank; ranks
  int64_t worker = 1, workers = 0;  // of each rollout worker; workers
  bool in_turn = false;             // trainer and workers

  int64_t busy() const;  // at once, at most
};

// `rollout_workers`: that a launch starts. `cores`: of the machine that all of them are on. What
// train.threads and rollout.threads say stands; of what they leave open (0) each process has one
// thread at least. For resolve(); all others have ResolvedRun::threads.
ThreadPlan plan_threads(const RunOptions& options, int64_t rollout_workers, int64_t cores);

// Trainer and workers take turns on the cores of this machine, which do not suffice for both, so
// that no step may begin before an evaluation has ended. Where one of them computes on a GPU, its
// threads mostly wait, and an evaluation may run beside a step.
bool evaluates_in_turn(const ThreadPlan& plan, Device trainer, Device rollout);

// A worker that joins a run finds the cores taken by others, and is told no number of those who
// join beside it: it has what rollout.threads says, else one.
int64_t joined_threads(const RunOptions& options);

// "trainer 4 + 2 rollout workers x 2 = 8 of 8 cores".
std::string describe(const ThreadPlan& plan);

// Why the cores do not suffice, and what to change; empty: they do.
std::string thread_shortage(const ThreadPlan& plan, const RunOptions& options);

}  // namespace tailrace
