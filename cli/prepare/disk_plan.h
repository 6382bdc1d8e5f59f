// The files that a run writes into its directory, and how much stays: figures by the keys that they
// follow from.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/prepare/placed_run.h"
#include "core/base/machine.h"
#include "core/model/model_config.h"

namespace tailrace {

struct DiskPlan {
  // Written: by each step, and by a checkpoint every `interval` steps.
  int64_t version = 0, tokens = 0;  // tokens: of samples at their longest
  int64_t model = 0, master = 0, moments = 0;
  int64_t interval = 1;
  // The most that stays.
  int64_t versions = 0;        // with their payloads, weights.keep
  int64_t older_versions = 0;  // of stored samples, or since the one that is evaluated
  int64_t older_bytes = 0;     // of these, if deltas are no smaller than versions
  int64_t checkpoints = 0;     // one that is being written included
  int64_t reference = 0;       // of algo.kl
  int64_t stored_steps = 0;    // whose samples are there
  int64_t others = 0;          // journal, traces, timeline, about

  int64_t checkpoint_bytes() const { return model + master + moments; }
  int64_t certain_bytes() const;
  int64_t most_bytes() const;
};

// `steps`: of the run at most, 0: no end, or supervised training alone. `tokens_per_step`: at most.
// `lags`: steps go on under an evaluation.
DiskPlan plan_disk(const PlacedRun& placed, int64_t steps, int64_t tokens_per_step, bool lags);

// Lines of the plan.
std::vector<std::string> describe(const DiskPlan& plan, const RunOptions& options);

// A warning; empty: what is free where the run directory is, or will be, is enough beside what lies
// in the directory already.
std::string disk_shortage(const DiskPlan& plan, const std::filesystem::path& run_directory);

}  // namespace tailrace
