// A step: its groups come, at once or one by one, and it makes its updates.
//
// One that gathers makes one update, and computes the gradient of each group when it comes
// (AsyncFlow, 2507.01663). Denominators are global as ever: gradients gather with counts of 1, and
// are divided in the end. The sums depend on the order of the groups alone, whenever each of them
// comes. Any other waits until it has all, and makes train.ppo_epochs passes over
// train.minibatches_per_step minibatches; the first versions of a critic leave the policy as it is.
//
// Between the first group and the last the weights must not change.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/metric_list.h"
#include "core/model/expert_loads.h"
#include "core/model/parameters.h"
#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/options.h"
#include "trainer/step_report.h"
#include "trainer/step_scores.h"
#include "trainer/weight_update.h"

namespace tailrace {

// The part of a run that a step is: shares of the whole, 0 <= begin <= end <= 1. Its updates share
// it equally, and the schedule of the rates goes by where each begins.
struct RunShare {
  double begin = 0, end = 0;
};

class TrainStep {
 public:
  // Borrows all but the options.
  TrainStep(const Stream& stream, const Model& model, StepScores& scores, WeightUpdate& update,
            const TrainOptions& train, bool gathers);

  // The batch of all groups added. Its metrics are the caller's to set, of all samples of the step.
  TrainBatch& batch() { return batch_; }
  const TrainBatch& batch() const { return batch_; }
  // Whole groups, in the order of the step; one at a time where it gathers. `version`: of the
  // current weights.
  void add(TrainBatch groups, int64_t version, const PolicyLossConfig& loss);
  // The updates. Metrics policy/..., mismatch/..., staleness/..., and the batch's own. A batch
  // without a trained token makes no update. The step is spent until clear().
  MetricList finish(int64_t version, const PolicyLossConfig& loss, RunShare share = {});
  // For the next step, in the same memory; also where an add() has thrown.
  void clear();

  // For a step that gathers: of all groups so far, behind finish() of the update.
  const Parameters& gradients() const { return gathered_->gradients; }

 private:
  struct Gathered {
    Parameters gradients;
    ExpertLoads loads;
    UpdateReport sums = {};
  };
  void update_once(StepReport& report, const PolicyLossConfig& loss, double done);
  void update_by_minibatch(StepReport& report, int64_t version, const PolicyLossConfig& loss,
                           RunShare share);

  Stream stream_;
  StepScores& scores_;
  WeightUpdate& update_;
  TrainOptions train_;
  TrainBatch batch_;
  bool is_clear_ = true;
  std::optional<Gathered> gathered_;
};

// A minibatch with at least one trained token, over its own counts. Borrows the batch.
PolicyPass minibatch_pass(const TrainBatch& batch, const Minibatch& minibatch,
                          const PolicyLossConfig& loss, int64_t version);

}  // namespace tailrace
