// The trainer as a worker process: it asks the scheduler for the batch of each step, trains, and
// publishes the weights of the next version. What it says and when: core/wire/README.md.
//
// Of several ranks each is such a process. They meet when the scheduler says so; rank 0 does what
// stands above, and the others hold what it holds and compute their part of each step. A step that
// loses a rank begins again when it is back; rank 0 goes back to its checkpoint for that only where
// the weights have begun to change.
//
// Killed at any moment it comes back with its newest checkpoint; the same batches then give the
// same weights, bit for bit.
//
// Thread: run_trainer_worker() occupies the thread that calls it, and starts its own pool beside
// it.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/base/exit_code.h"
#include "core/run/log.h"
#include "core/run/memory_need.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

// The memory that the worker takes before the first step, and holds to the end. It does not grow
// with what is sampled: a step's tokens come on top (kStepBytesPerToken).
PlacedMemory trainer_memory(const TrainerWorkerConfig& config);

// Bytes of a step's token, about: bodies, what they say, the batch made of it, what a pass saw.
inline constexpr int64_t kStepBytesPerToken = 192;

// Until the scheduler says Shutdown: kExitDone. kExitFailed when the scheduler stayed silent or
// another process has the name; kExitUserError after saying so to the scheduler (WorkerFailed) and
// to the log. `config` must be valid.
ExitCode run_trainer_worker(const TrainerWorkerConfig& config, Log& log, const Clock& clock);

}  // namespace tailrace
