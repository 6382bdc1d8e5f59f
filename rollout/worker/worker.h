// The rollout worker process: it plays the episodes that the scheduler grants, under the weights
// that it has been told to install. What it says and when: core/wire/README.md.
//
// It keeps nothing that matters: killed at any moment, its leases are granted again, behind the
// turns that it had stored or from the beginning, and the same members sample the same tokens under
// the same weights.
//
// Thread: run_rollout_worker() occupies the thread that calls it, and starts its own pools beside
// it.
#pragma once

#include <cstdint>
#include <stop_token>

#include "core/base/clock.h"
#include "core/base/exit_code.h"
#include "core/run/log.h"
#include "core/run/memory_need.h"
#include "rollout/worker/worker_config.h"
#include "sandbox/registry.h"

namespace tailrace {

// Memory that the worker takes before it asks for work and holds to the end: also a second version
// of the weights, which comes when the first step has been trained. Throws as num_kv_blocks().
PlacedMemory rollout_memory(const RolloutWorkerConfig& config);

// Bytes on top for each token of its episodes, about: as sampled, as a trajectory, as a
// message.
inline constexpr int64_t kEpisodeBytesPerToken = 128;

// Until the scheduler says Shutdown: kExitDone. Until `stop`: it stores the turns of what it plays
// and says goodbye, which gives back what it holds, and that is kExitInterrupted. kExitFailed when
// the scheduler stayed silent or another process has the name; kExitUserError after saying so to
// the scheduler (WorkerFailed) and to the log.
ExitCode run_rollout_worker(const RolloutWorkerConfig& config,
                            const sandbox::EnvironmentRegistry& environments, Log& log,
                            const Clock& clock, std::stop_token stop = {});

}  // namespace tailrace
