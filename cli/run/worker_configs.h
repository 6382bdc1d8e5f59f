// The configs of a run's worker processes, made of its options alone: the same for who plans a run
// and for who plays it, so that a plan is about the processes that will be.
//
// Thread: any.
#pragma once

#include <string>

#include "cli/run/device_choice.h"
#include "cli/run/options.h"
#include "kernels/base/device.h"
#include "rollout/worker/worker.h"
#include "trainer/worker/worker.h"

namespace tailrace {

// Where a rollout worker of this machine computes, and the trainer, which has the same device
// unless something of its recipe keeps it on the CPU. Throws UserError, about model.device, where
// that asks for what this machine has not, or cannot compute.
ChosenDevice rollout_device(const RunOptions& options, const ModelConfig& model);
Device trainer_device(const RunOptions& options, const ModelConfig& model);
// "Muon (optim.kind) runs on the CPU alone so far"; empty: nothing keeps it there.
std::string why_trainer_on_cpu(const RunOptions& options);

// Names, endpoint and paths are the caller's to fill in. `model`: planned_model(). `device`: that
// of rollout_device() where the worker runs.
TrainerWorkerConfig trainer_config(const RunOptions& options, const ModelConfig& model);
RolloutWorkerConfig rollout_config(const RunOptions& options, const ModelConfig& model,
                                   const PoolSection& pool, Device device);

}  // namespace tailrace
