// What the updates of a step were, and the metrics that are made of them.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/metric_list.h"
#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/optimizer.h"

namespace tailrace {

// Of one policy update, or of a slot of it.
struct UpdateReport {
  PolicyLossResult loss;
  Optimizer::Report optimizer;
  // Between the recorded log-probabilities and this forward pass, over the tokens of the step's
  // own version. Also of another class: it is how far the two are from each other.
  int64_t current_tokens = 0;
  double mismatch_abs_sum = 0, mismatch_abs_max = 0;

  void add(const UpdateReport& part);  // of the same update; not the optimizer's
  // logprobs: of all targets of these sequences, from the forward pass of weights `version`.
  void add_mismatch(std::span<const TrainSequence> sequences, std::span<const float> logprobs,
                    int64_t version);
};

// Of the updates of a step.
struct StepReport {
  PolicyLossStats stats;
  UpdateReport first;
  double loss_sum = 0, kl_sum = 0, imitation_sum = 0, norm_sum = 0, lr = 0;
  int64_t updates = 0, skipped = 0;

  void add(const UpdateReport& report);
  // The optimizer's, of all of them: only now does anybody wait for the updates.
  void add(const std::vector<Optimizer::Report>& reports);
};

// Metrics policy/..., mismatch/..., staleness/..., and the batch's own, after the step's updates.
// Without one they are few: there is nothing to average.
MetricList step_metrics(const TrainBatch& batch, const StepReport& step, int64_t version,
                        const PolicyLossConfig& loss, int64_t ppo_epochs);

}  // namespace tailrace
