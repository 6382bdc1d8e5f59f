// A run as it is, worked out once from its valid options: the datasets, whichever way the config
// states them, the pools of rollout workers, the threads of each process. Whoever plans, simulates,
// plays or evaluates a run takes this value and works none of it out again.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "cli/config/stages.h"
#include "cli/inputs/run_rewards.h"
#include "cli/inputs/threads.h"
#include "core/base/machine.h"
#include "scheduler/state/mode.h"

namespace tailrace {

struct ResolvedRun {
  RunOptions options;  // as config.yaml keeps them
  // The run has no environment: it learns from rows alone, and has no datasets.
  bool supervised_only = false;
  std::vector<RunStage> stages =
      {};  // trainings on rows, in their order: they come first, or are all
  // In the order of the config, which numbers them (law 1.1).
  std::vector<RunDataset> datasets = {};
  // In the order of the config (law 1.5), at least one. `max_sequences` is what each worker has.
  std::vector<PoolSection> pools = {};
  // Pools whose workers a launch starts: they are in no cluster. There may be none.
  std::vector<PoolSection> launched_pools = {};
  int64_t rollout_workers = 0, reward_workers = 0;  // that a launch starts
  RunRewards rewards = {};
  scheduler::Mode mode = {};
  ThreadPlan threads = {};  // of the processes on this machine
};

// `cores`: of the machine that the processes of a launch share.
ResolvedRun resolve(RunOptions options, int64_t cores = num_usable_cores());

// The same run with other options; the rows that were found for its datasets stay.
ResolvedRun changed(const ResolvedRun& run, RunOptions options);

}  // namespace tailrace
