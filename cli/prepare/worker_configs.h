// The configs of a run's worker processes, each made whole in one place: the same for who plans a
// run and for who plays it, so that a plan is about the processes that will be.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "cli/config/options.h"
#include "cli/prepare/placed_run.h"
#include "core/run/run_directory.h"
#include "core/weights/colocation.h"
#include "core/weights/fetch_weights.h"
#include "core/wire/endpoint.h"
#include "rollout/worker/worker.h"
#include "trainer/worker/worker.h"

namespace tailrace {

// Where a worker stands in a run that is played. The worker of a plan stands nowhere yet.
struct WorkerSeat {
  std::string worker = {};  // its name
  RunPaths run = {};        // prepared
  wire::Endpoint endpoint = {};
  Colocation* colocation = nullptr;  // null: it takes no turns
  // Of the trainer.
  int rank = 0;
  int64_t most_steps = 0;  // most_steps() of the run, where its rate follows a schedule
  // Of a rollout worker: one that a person added, and one that does not see the run's folder.
  bool joined = false;
  std::string cluster = {}, host = {};
  uint64_t incarnation = 0;
  FetchWeights fetch_weights = {};
  std::chrono::milliseconds patience = RolloutWorkerConfig{}.patience;
  std::function<void()> prove_inputs = [] {};
};

TrainerWorkerConfig trainer_config(const PlacedRun& placed, const WorkerSeat& seat);
RolloutWorkerConfig rollout_config(const PlacedRun& placed, const PoolSection& pool,
                                   const WorkerSeat& seat);

}  // namespace tailrace
