#include "trainer/train_step.h"

#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/ops/embedding.h"
#include "trainer/token_advantages.h"

namespace tailrace {
namespace {

// On the CPU in double.
void weigh(const Stream& stream, Parameters& gradients, double weight) {
  if (stream.device.kind == DeviceKind::kCpu) {
    for (float& g : gradients.flat()) g = static_cast<float>(g * weight);
    return;
  }
  constexpr int64_t kWidth = 16;  // the layout is padded to it
  Tensor flat = Matrix(gradients.values().data(), std::ssize(gradients.values()) / kWidth, kWidth);
  flat.device = stream.device;
  scale(stream, {.x = flat, .factor = static_cast<float>(weight)});
}

void weigh(PolicyLossResult& sums, double weight) {
  for (double* term :
       {&sums.loss, &sums.policy_term, &sums.kl_term, &sums.entropy_term, &sums.imitation_term})
    *term *= weight;
}

}  // namespace

PolicyPass minibatch_pass(const TrainBatch& batch, const Minibatch& minibatch,
                          const PolicyLossConfig& loss, int64_t version) {
  LossCounts counts = loss_counts(batch, minibatch);
  TR_CHECK(counts.tokens > 0);
  if (loss.correction.normalize)
    counts.mean_correction = mean_correction(batch, minibatch, loss.correction);
  return {.loss = loss,
          .sequences =
              std::span(batch.sequences).subspan(minibatch.begin, minibatch.end - minibatch.begin),
          .counts = counts,
          .version = version};
}

TrainStep::TrainStep(const Stream& stream, const Model& model, StepScores& scores,
                     WeightUpdate& update, const TrainOptions& train, bool gathers)
    : stream_(stream), scores_(scores), update_(update), train_(train) {
  if (gathers)
    gathered_.emplace(Parameters(model.trained(), stream.device), ExpertLoads(model.config()));
}

void TrainStep::clear() {
  if (std::exchange(is_clear_, true)) return;
  batch_ = {};
  if (!gathered_) return;
  fill(stream_, {.x = gathered_->gradients.values(), .value = 0});
  wait(stream_);
  gathered_->loads.clear();
  gathered_->sums = {};
}

void TrainStep::add(TrainBatch groups, int64_t version, const PolicyLossConfig& loss) {
  is_clear_ = false;
  if (!groups.sequences.empty()) {
    scores_.prepare(groups, version, loss, update_.critic());
    if (gathered_) {
      TR_CHECK(!loss.correction.normalize, "it needs the whole step");
      // Counts of 1 leave the denominators out: they are those of the whole step, which is known at
      // its end. update_once() divides the sum by them.
      update_.gather({.loss = loss,
                      .sequences = groups.sequences,
                      .counts = {.tokens = 1,
                                 .trajectories = 1,
                                 .trajectory_tokens = groups.trajectory_tokens},
                      .version = version},
                     gathered_->gradients, gathered_->loads);
      gathered_->sums.add(update_.take().back());
    }
  }
  append(batch_, std::move(groups));
}

MetricList TrainStep::finish(int64_t version, const PolicyLossConfig& loss, RunShare share) {
  StepReport report;
  if (gathered_) {
    update_once(report, loss, share.begin);
  } else {
    update_by_minibatch(report, version, loss, share);
  }
  // The updates' own passes miss what the last update moved, and with one update they miss all.
  if (report.updates > 0) report.moved = scores_.measure_drift(batch_);
  MetricList metrics =
      step_metrics(batch_, report, version, loss, gathered_ ? 1 : train_.ppo_epochs);
  for (auto& metric : update_.take_metrics(batch_)) metrics.push_back(std::move(metric));
  return metrics;
}

void TrainStep::update_once(StepReport& report, const PolicyLossConfig& loss, double done) {
  const LossCounts counts = loss_counts(batch_, {0, batch_.sequences.size()});
  if (counts.tokens == 0) return;
  const double weight = common_weight(loss.aggregation, counts);
  weigh(stream_, gathered_->gradients, weight);
  weigh(gathered_->sums.loss, weight);
  update_.apply(gathered_->gradients, gathered_->loads, done);
  report.add(gathered_->sums);
  report.add(update_.optimizer().take_reports());
}

void TrainStep::update_by_minibatch(StepReport& report, int64_t version,
                                    const PolicyLossConfig& loss, RunShare share) {
  update_.forget();  // what a step that lost a rank measured
  const Critic* critic = update_.critic();
  // During the critic's warm-up the policy stays as it is, and versions are published all the same.
  const bool moves = critic == nullptr || version >= critic->options().warmup_steps;
  std::vector<Minibatch> minibatches = split_minibatches(batch_, train_.minibatches_per_step);
  // All of its tokens may have been rejected.
  std::erase_if(minibatches, [&](const Minibatch& minibatch) {
    return loss_counts(batch_, minibatch).tokens == 0;
  });
  const auto updates = static_cast<double>(std::ssize(minibatches) * train_.ppo_epochs);
  double made = 0;
  for (int64_t epoch = 0; epoch < train_.ppo_epochs; ++epoch) {
    for (const Minibatch& minibatch : minibatches) {
      const PolicyPass pass = minibatch_pass(batch_, minibatch, loss, version);
      // The share of the run that is done, which the learning rate falls by, grows within a step
      // too.
      const double done = share.begin + (share.end - share.begin) * (made++ / updates);
      if (moves) {
        update_.policy(pass, done);
      } else {
        update_.critic_alone(pass);
      }
    }
  }
  const std::vector<Optimizer::Report> reports = update_.optimizer().take_reports();
  for (const UpdateReport& update : update_.take()) report.add(update);
  report.add(reports);
}

}  // namespace tailrace
