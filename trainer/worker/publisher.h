// Where the versions of a trainer go to and come from: files below RUN/weights that workers
// install, and checkpoints that it goes on from.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/digest.h"
#include "core/messages/message.h"
#include "core/run/log.h"
#include "core/weights/manifest.h"
#include "core/weights/version_keeper.h"
#include "trainer/checkpoint.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/held_version.h"
#include "trainer/worker/saved_state.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class Publisher {
 public:
  // Borrows all; `base`: of an adapter, else empty.
  Publisher(const TrainerWorkerConfig& config, PolicyTrainer& trainer, ReferenceWeights& reference,
            HeldVersion& held, const Digest& base, Log& log);

  // Takes the newest checkpoint, whose version is published again, or the weights that the run
  // begins with, which are of no version. Throws UserError.
  void load();

  // The manifest of the weights as they are now.
  WeightManifest manifest_of(int64_t version) const;
  // Writes them. From now on their version is held. Throws UserError.
  void publish(const WeightManifest& manifest, MetricList metrics);
  void release(const wire::ReleaseWeights& message);

  // A checkpoint of the version that is held, unless there is one. Throws UserError.
  void write_checkpoint();
  // The newest checkpoint.
  wire::Durable durable() const;

 private:
  void begin();
  void resume(const ProvedCheckpoint& loaded);
  // Where this process computes otherwise than the one that made the version that it goes on from.
  void warn_of_another_class(const WeightManifest& now) const;
  int64_t horizon() const;  // updates of the run, at most

  const TrainerWorkerConfig& config_;
  PolicyTrainer& trainer_;
  ReferenceWeights& reference_;
  HeldVersion& held_;
  const Digest& base_;
  Log& log_;
  VersionKeeper versions_;
  CheckpointFolder checkpoints_;
  const std::string attempt_;   // to publish: of this process
  int64_t saved_version_ = -1;  // of the newest checkpoint
  std::filesystem::path saved_path_;
};

}  // namespace tailrace
