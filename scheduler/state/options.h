// The scheduler's keys in a configuration file, and the Config that they make.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/base/time.h"
#include "scheduler/state/config.h"

namespace tailrace::scheduler {

// How the scheduler keeps its files.
struct StorageOptions {
  // Size of a file of bodies before the next one begins.
  int64_t store_bytes = int64_t{64} << 20;
  // The same of events; a new one begins with a snapshot.
  int64_t journal_bytes = int64_t{16} << 20;
  // Keeps every journal file (law 13.1).
  bool archive = false;
  // Rows of spans in timeline.jsonl, a step; 0: no file.
  int64_t timeline_rows = 2000;
};

// The size of one step. Its keys stand in the section `rollout`, where people look for them.
struct StepOptions {
  int64_t prompts_per_step = 64;
  int64_t group_size = 8;

  void visit(OptionVisitor& v);
};

struct SchedulerOptions {
  ModeOptions mode;
  bool replace_zero_signal = false;
  int64_t max_gen_batches = 10;
  RetryBounds retries;
  Deadlines deadlines;
  QuarantineConfig quarantine;
  BreakerConfig breaker;
  // Time without progress after which a rollout worker's work goes to others (law 8.6); 0: never.
  // The service keeps it: decide() hears only which worker stands still.
  Time no_progress{std::chrono::seconds(2)};
  StorageOptions storage;

  void visit(OptionVisitor& v);
};

// The part of a run's config that its scheduler needs: the section `run`, and its datasets.
struct RunShape {
  int64_t steps = 0;
  int32_t trainer_ranks = 1;
  std::vector<DatasetConfig> datasets;
};

// Throws UserError as Config::validate does.
Config make_config(const SchedulerOptions& options, const StepOptions& step,
                   const EvalOptions& eval, const SaveOptions& save, const WeightsOptions& weights,
                   const RunShape& run);

}  // namespace tailrace::scheduler
