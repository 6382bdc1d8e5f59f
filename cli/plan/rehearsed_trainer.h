// The trainer of a run without its process: it makes the updates of a step of made-up tokens, and
// publishes.
//
// Thread: one at a time.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/config/options.h"
#include "cli/plan/costs.h"
#include "core/weights/frozen_base.h"
#include "core/weights/manifest.h"
#include "kernels/base/backend.h"
#include "kernels/base/thread_pool.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/worker.h"

namespace tailrace {

class RehearsedTrainer {
 public:
  // `config`: trainer_config(). Reads the weights that the run would begin with, or makes them.
  // `sampled_as`: the numerics class of the rollout workers; what another one than the trainer's
  // has sampled is scored again. Throws UserError as load_parameters() does.
  RehearsedTrainer(const TrainerWorkerConfig& config, std::string sampled_as);

  // By next to nothing: the next version has other digests.
  void change_weights();
  // Writes a version below `folder`. Returns what WeightStage wants to know.
  struct Published {
    WeightManifest manifest;
    std::string file;  // its name
    double seconds = 0;
    double payload_bytes = 0;
  };
  Published publish(const std::filesystem::path& folder, int64_t version);

  // Trains on made-up tokens of these lengths; the seconds that it took, and the tokens that went
  // through the loss.
  struct Trained {
    double seconds = 0;
    double tokens = 0;
    int64_t samples = 0;
  };
  Trained train(std::span<const PlannedEpisode> episodes);

  // The cost of a step, from two of different sizes. `episodes`: of a step, whole groups.
  simulator::TrainModel measure(std::span<const PlannedEpisode> episodes);

  const Digest& base_root() const { return base_.root; }

 private:
  std::vector<Trajectory> trajectories_of(std::span<const PlannedEpisode> episodes) const;

  TrainerWorkerConfig config_;
  std::string sampled_as_;
  ThreadPool pool_;
  OwnedStream stream_;
  FrozenBase base_;
  PolicyTrainer trainer_;
  PolicyLossConfig loss_;
};

}  // namespace tailrace
