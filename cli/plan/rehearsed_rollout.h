// The rollout workers of a run without their processes: they take a version, decode, and play
// episodes, all at the same time, as in the run.
//
// Thread: one at a time; each worker has a thread of its own while it works.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/registries.h"
#include "cli/plan/costs.h"
#include "cli/plan/rehearsed_trainer.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"
#include "rollout/worker/worker.h"

namespace tailrace {

class RehearsedRollout {
 public:
  // `config`: rollout_config(), with `run` and `tokenizer_dir` of a prepared folder. `workers`:
  // that work beside each other.
  RehearsedRollout(const RolloutWorkerConfig& config, int64_t workers,
                   const Registries& registries);
  ~RehearsedRollout();

  // All workers fetch, prove, pack and take a version: seconds until the last one has it.
  double install(const RehearsedTrainer::Published& version);

  // Decode steps at batches and contexts up to these, and prefill. After install().
  struct Largest {
    int64_t batch = 1;    // sequences of a worker
    int64_t prompt = 1;   // tokens
    int64_t context = 1;  // tokens of a sequence at its end
    int64_t group_size = 1;
  };
  simulator::Hardware measure(const Largest& largest);

  // Plays `groups` of the run's own episodes on each worker.
  struct Play {
    double seconds = 0;         // of the slowest
    double verify_seconds = 0;  // a sample
    bool whole = true;          // false: it took too long, and what was played is left out
    int64_t turns = 0;          // of the worker that had most of them
    std::vector<PlannedEpisode> episodes;
  };
  Play play(const RunOptions& options, int64_t groups, double most_seconds);

 private:
  struct Worker;
  // How many of the workers' threads share a core, which they wait for: at least 1.
  double crowding() const;
  void all(const std::function<void(Worker&, size_t)>& work);

  RolloutWorkerConfig config_;
  const Registries& registries_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace tailrace
