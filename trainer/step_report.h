// Reports of the updates of a step, and the metrics that are made of them.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/metric_list.h"
#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/optimizer.h"

namespace tailrace {

// The report of one policy update, or of a slot of it.
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

// The sums over the updates of a step.
struct StepReport {
  PolicyLossStats stats;
  UpdateReport first;
  double loss_sum = 0, kl_sum = 0, imitation_sum = 0, norm_sum = 0, lr = 0;
  int64_t updates = 0, skipped = 0;
  // How far the step moved the policy, on a sample of its tokens: the weights after its last update
  // against those that it started from; absent: nothing was measured.
  std::optional<double> moved;

  void add(const UpdateReport& report);
  // The optimizer's, of all of them: only now does anybody wait for the updates.
  void add(const std::vector<Optimizer::Report>& reports);
};

// Sequences with a trained token, evenly over a step and in their order: of all tokens at most a
// sixteenth, or 1,024 where that is more, and at most `most_tokens`; but one in any case. None of a
// step without one.
std::vector<size_t> drift_sample(const TrainBatch& batch, int64_t most_tokens);
// How far the weights that computed `logprobs`, of all targets of these sequences, are from those
// that the step started from, mean a trained token: k3, and k2 of tokens that became likelier. The
// two are the same for small changes, but k3 grows there with the ratio itself, so that one token
// of a sample would outweigh all others.
double drift_of(const TrainBatch& batch, std::span<const size_t> sample,
                std::span<const std::vector<float>> logprobs);

// Metrics policy/..., mismatch/..., staleness/..., and the batch's own, after the step's updates.
// Without one they are few: there is nothing to average.
MetricList step_metrics(const TrainBatch& batch, const StepReport& step, int64_t version,
                        const PolicyLossConfig& loss, int64_t ppo_epochs);

}  // namespace tailrace
