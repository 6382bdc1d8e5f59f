// What the worker processes of a run are told, of its options alone: the same for who plans a run
// and for who plays it, so that a plan is about the processes that will be.
//
// Thread: any.
#pragma once

#include "cli/run/options.h"
#include "rollout/worker/worker.h"
#include "trainer/worker/worker.h"

namespace tailrace {

// Names, endpoint and paths are the caller's to fill in. `model`: planned_model().
TrainerWorkerConfig trainer_config(const RunOptions& options, const ModelConfig& model);
RolloutWorkerConfig rollout_config(const RunOptions& options, const ModelConfig& model,
                                   const PoolSection& pool);

}  // namespace tailrace
