// The trainings on rows before the first step, or of a run that is nothing else: one after the
// other, each from the weights that the one before it left. They go on from a checkpoint of their
// own where they were killed.
//
// A stage of the policy that has ended keeps a checkpoint behind its last update, so that the next
// one has where to begin; they all go when version 0 is there. A reward model is trained beside the
// policy, in weights of its own, and is done when its folder is there.
//
// With ranks each stage is trained by all of them: rank 0 says where it goes on and gives the
// others its weights, and behind each update whether a person has stopped it. It alone reports,
// saves and reads what was saved. A rank that is lost is a RankLost in the others, and all go on
// from the stage's checkpoint as other processes.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/messages/message.h"
#include "core/model/model_form.h"
#include "core/run/log.h"
#include "kernels/base/device.h"
#include "trainer/checkpoint.h"
#include "trainer/distill_task.h"
#include "trainer/policy_trainer.h"
#include "trainer/preference.h"
#include "trainer/row_task.h"
#include "trainer/stage.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class RowStages {
 public:
  // begins: with each stage that is not done. report: after some of the updates. stops: asked
  // behind each update; true: a person has stopped the run. A rank beside rank 0 is asked the last
  // one alone, and its answer does not count.
  struct Owner {
    std::function<void(const wire::TrainingStage&)> begins;
    std::function<void(const wire::Progress&)> report;
    std::function<bool()> stops;
  };
  // Borrows all but the owner; `base`: of an adapter, else empty.
  RowStages(const TrainerWorkerConfig& config, const Stream& stream, PolicyTrainer& trainer,
            const Digest& base, Log& log, Owner owner);

  // Rank 0, or alone: goes back to the last checkpoint, and says which stage goes on there; none:
  // false. Throws UserError.
  bool begin();
  // Says again which stage goes on, to a scheduler that may not know.
  void say_again() { say_begins(at_); }
  // Behind it, all updates of config.stages that are left, or those until it stops, which it saves.
  // The metrics of the last update, and of the last evaluation. `ranks`: that have met; null: it is
  // alone. Throws UserError and RankLost.
  MetricList run(Collective* ranks = nullptr);
  // The same of another rank.
  void follow(Collective& ranks);

 private:
  bool leads() const { return config_.rank == 0; }
  // What rank 0 says, on each.
  int64_t agreed(int64_t own);
  bool stops();
  void say_begins(size_t index);
  bool is_done(size_t index, const RowTask* task) const;
  std::unique_ptr<RowTask> make_task(const RowStage& stage, PolicyTrainer& trainer) const;
  ModelForm policy_form() const;
  CheckpointFolder folder_of(const RowStage& stage) const;
  bool has_checkpoint(const RowStage& stage) const;
  // True: there was a checkpoint.
  bool resume(const RowStage& stage, PolicyTrainer& trainer, RowTask& task);
  // Those that are kept, where they are of the weights that the stage began with.
  std::optional<std::vector<double>> kept_reference(const RowStage& stage,
                                                    const PreferenceTask& task) const;
  void keep_reference(const RowStage& stage, const std::vector<double>& logprobs);
  // False: it was stopped while it scored.
  bool set_reference(const RowStage& stage, RowTask& task);
  bool set_teacher_scores(const RowStage& stage, RowTask& task);
  // Whether the file of the teacher's scores is there. Throws UserError where a stage that goes on
  // has lost it.
  bool has_teacher_scores(const RowStage& stage, const DistillTask& task) const;
  bool score_rows(const RowStage& stage, const DistillTask& task);
  // False: it was stopped.
  bool train(size_t index, PolicyTrainer& trainer, RowTask& task);
  bool train_updates(size_t index, PolicyTrainer& trainer, RowTask& task);
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
  Collective* ranks_ = nullptr;    // null: alone
  size_t at_ = 0;                  // the stage that goes on, or is next
  std::unique_ptr<RowTask> task_;  // of it, where it was read for its checkpoint
  MetricList last_;
};

// The reward model of a stage, before its first update; for the memory that it takes too.
std::unique_ptr<PolicyTrainer> make_reward_trainer(const TrainerWorkerConfig& config,
                                                   const Stream& stream);

}  // namespace tailrace
