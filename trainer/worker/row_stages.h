// The trainings on rows before the first step, or of a run that is nothing else: one after the
// other, each from the weights that the one before it left. They go on from a checkpoint of their
// own where they were killed.
//
// A stage of the policy that has ended keeps a checkpoint behind its last update, so that the next
// one has where to begin; they all go when version 0 is there. A reward model is trained beside the
// policy, in weights of its own, and is done when its folder is there.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/messages/message.h"
#include "core/model/model_form.h"
#include "core/run/log.h"
#include "kernels/base/device.h"
#include "trainer/checkpoint.h"
#include "trainer/policy_trainer.h"
#include "trainer/row_task.h"
#include "trainer/stage.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class RowStages {
 public:
  // begins: with each stage that is not done. report: after some of the updates. stops: asked
  // behind each update; true: a person has stopped the run.
  struct Owner {
    std::function<void(const wire::TrainingStage&)> begins;
    std::function<void(const wire::Progress&)> report;
    std::function<bool()> stops;
  };
  // Borrows all but the owner; `base`: of an adapter, else empty.
  RowStages(const TrainerWorkerConfig& config, const Stream& stream, PolicyTrainer& trainer,
            const Digest& base, Log& log, Owner owner);

  // All updates of config.stages, or those until it stops, which it saves. The metrics of the last
  // update, and of the last evaluation. Throws UserError.
  MetricList run();

 private:
  std::unique_ptr<RowTask> make_task(const RowStage& stage, PolicyTrainer& trainer) const;
  ModelForm policy_form() const;
  CheckpointFolder folder_of(const RowStage& stage) const;
  bool has_checkpoint(const RowStage& stage) const;
  // True: there was a checkpoint.
  bool resume(const RowStage& stage, PolicyTrainer& trainer, RowTask& task);
  // False: it was stopped while it scored.
  bool set_reference(const RowStage& stage, RowTask& task);
  // False: it was stopped.
  bool train(size_t index, PolicyTrainer& trainer, RowTask& task);
  bool train_reward_model(size_t index);
  MetricList evaluate(const RowStage& stage, RowTask& task);
  void save(const RowStage& stage, PolicyTrainer& trainer, const RowTask& task);
  void write_reward_model(const RowStage& stage, const PolicyTrainer& trainer);

  const TrainerWorkerConfig& config_;
  Stream stream_;
  PolicyTrainer& trainer_;
  const Digest& base_;
  Log& log_;
  Owner owner_;
  MetricList last_;
};

// The reward model of a stage, before its first update; for the memory that it takes too.
std::unique_ptr<PolicyTrainer> make_reward_trainer(const TrainerWorkerConfig& config,
                                                   const Stream& stream);

}  // namespace tailrace
