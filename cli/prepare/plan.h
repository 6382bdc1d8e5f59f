// The plan of a run, worked out before anything is allocated: batches, updates, memory.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "cli/inputs/stage_rows.h"
#include "cli/inputs/threads.h"
#include "cli/prepare/device_plan.h"
#include "cli/prepare/disk_plan.h"
#include "cli/prepare/placed_run.h"
#include "core/base/machine.h"
#include "core/run/memory_need.h"

namespace tailrace {

// A training on rows.
struct StagePlan {
  std::string item;            // "sft", "stages[1].preference"
  int64_t demonstrations = 0;  // in the place of a file's rows: they are played when the run begins
  int64_t updates = 0;         // of all epochs; 0: not known before the demonstrations are made
  StageFiles files = {};       // for prepare_run(), which need not read them again
};

struct Plan {
  int64_t samples_in_flight = 0;  // at most, of all steps and surplus
  int64_t samples_per_step = 0, samples_per_minibatch = 0;
  int64_t updates_per_step = 0, steps = 0;        // at most (most_steps())
  int64_t max_tokens_per_step = 0;                // if every sample filled its context
  int64_t parameters = 0, active_parameters = 0;  // active: of one token
  int64_t trained_parameters = 0;                 // of an adapter fewer
  int64_t version_bytes = 0;                      // of the weights, as they are published
  std::vector<StagePlan> stages;                  // of ResolvedRun::stages
  std::vector<PromptFit> prompt_fits;       // of the datasets, where env.too_long drops or cuts
  std::vector<FittedPrompts> prompts = {};  // for prepare_run(), which need not read them again
  int64_t trainers = 1;                     // ranks
  // Memory of one process. Where launch starts no rollout worker: of one that joins from a cluster.
  // What lies on a GPU is in `devices`.
  std::vector<MemoryItem> trainer, rollout_worker;
  // Memory of the CPU that trainer and rollout worker have in turn, and the lists above have not.
  std::vector<MemoryItem> in_turn = {};
  std::vector<MemoryItem> others;  // scheduler, reward workers and launch together
  int64_t rollout_workers = 0;     // that launch starts
  DevicePlan devices;
  ThreadPlan threads;
  DiskPlan disk;
  std::vector<std::string> warnings;

  // Bytes of all processes; the largest number where it would be more.
  int64_t total_bytes() const;
  int64_t certain_bytes() const;
};

// `available_bytes`: of this machine; 0: not known.
// Throws UserError when the model and the run do not fit each other (a context beyond its
// positions, a KV cache too small for one), and for rows of stages that cannot be learned from.
Plan make_plan(const PlacedRun& placed, int64_t available_bytes);

// The memory that has to be there.
enum class MemoryBound : uint8_t {
  kNone,     // a person forces it
  kCertain,  // what is taken for certain, of the machine's and of what is free now
  kMost,     // and of what is free also all that may be taken besides
};

// Throws UserError when that memory is not there, with what is and the largest parts, and when the
// run makes more samples a step than the scheduler keeps.
void check_size(const Plan& plan, const MemoryFacts& machine,
                MemoryBound bound = MemoryBound::kCertain);

// The derivation, line by line. `algorithm`: its lines (algorithm.h).
std::string format_plan(const Plan& plan, const ResolvedRun& run,
                        const std::vector<std::string>& algorithm = {});

// Updates of the policy, in all of its steps.
int64_t policy_updates(const RunOptions& options, const Plan& plan);

}  // namespace tailrace
