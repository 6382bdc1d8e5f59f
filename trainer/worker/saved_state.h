// The checks of a trainer on the checkpoints that it goes on from, and on the weights that algo.kl
// holds the policy to.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/base/digest.h"
#include "core/model/model_config.h"
#include "core/run/log.h"
#include "trainer/checkpoint.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

// The launch shows these lines to a person (kPassedOver). `unit`: of the checkpoints' numbers.
void tell_passed_over(Log& log, const ProvedCheckpoint& loaded, std::string_view unit);
// Throws UserError where the adapter was trained beside other weights than these.
void require_saved_base(const CheckpointState& saved, const Digest& base,
                        const std::filesystem::path& model_dir);
ModelConfig written_as(const ModelConfig& model, Dtype dtype);
// Streams of random numbers of one run seed.
inline constexpr uint64_t kInitStream = 1, kSftStream = 2;

// The digest of parameters as they are trained.
Digest root_of(const Parameters& parameters);

// The reference policy of algo.kl. Its files lie beside the checkpoints, and each of those says
// which one it was trained against.
class ReferenceWeights {
 public:
  // Borrows all; `base`: of an adapter, else empty.
  ReferenceWeights(const TrainerWorkerConfig& config, PolicyTrainer& trainer, const Digest& base)
      : config_(config), trainer_(trainer), base_(base) {}

  const Digest& digest() const { return digest_; }  // empty: none
  // Loads the weights that a run began with. Throws UserError where they were changed or damaged.
  void load(const Digest& expected);
  // The policy as it is now, in a form in which nothing of it is rounded: its digest is proved when
  // the run goes on.
  void keep();

 private:
  const TrainerWorkerConfig& config_;
  PolicyTrainer& trainer_;
  const Digest& base_;
  Digest digest_;
};

}  // namespace tailrace
