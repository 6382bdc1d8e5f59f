#include "trainer/worker/step_work.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/time.h"
#include "core/weights/manifest.h"
#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "trainer/distill_step.h"
#include "trainer/worker/batch_intake.h"

namespace tailrace {
namespace {

bool without_signal(const MetricList& metrics) {
  return std::ranges::any_of(metrics, [](const auto& metric) {
    return metric.first == "rollout/zero_signal_frac" && metric.second == 1;
  });
}

template <class T>
T trained_on(int64_t step, Result<T> made) {
  if (!made) refuse_batch(step, made.failure().message);
  return std::move(made).value();
}

}  // namespace

StepWork::StepWork(const TrainerWorkerConfig& config, const Stream& stream, PolicyTrainer& trainer,
                   const HeldVersion& held, Log& log, const Clock& clock)
    : config_(config),
      stream_(stream),
      trainer_(trainer),
      held_(held),
      log_(log),
      clock_(clock),
      loss_(policy_loss_config(config.algo)),
      step_(trainer.begin_step(config.streams)) {}

BatchOptions StepWork::batch_options() const {
  const bool replays = config_.algo.router_replay == RouterReplay::kReplay;
  return {.algo = config_.algo,
          .experts = replays ? config_.model.expert_shape() : ExpertShape{},
          .numerics_class = numerics_class(config_.compute, config_.device),
          .vocab_size = config_.model.num_ids(),
          .max_sequence_tokens = config_.max_sequence_tokens,
          .version = held_.version,
          .max_staleness = config_.max_staleness};
}

void StepWork::add(const BatchFetch& part) {
  const Time start = clock_.now();
  const wire::Batch& of = part.batch();
  std::vector<Trajectory> trajectories = trained_on(of.step, part.trajectories());
  if (config_.streams) {
    add_groups(of.step, trajectories);
  } else {
    if (!of.last) refuse_batch(of.step, "it comes in parts");
    step_.add(trained_on(of.step, build_batch(trajectories, batch_options())), held_.version,
              loss_);
  }
  std::ranges::move(trajectories, std::back_inserter(trajectories_));
  seconds_ += seconds_of(clock_.now() - start);
}

// One after the other, so that it does not matter which of them came together.
void StepWork::add_groups(int64_t step, std::span<const Trajectory> groups) {
  for (auto begin = groups.begin(); begin != groups.end();) {
    beat();
    const auto end = std::find_if_not(begin, groups.end(), [&](const Trajectory& t) {
      return same_group(begin->lease.member, t.lease.member);
    });
    step_.add(trained_on(step, build_batch({begin, end}, batch_options())), held_.version, loss_);
    begin = end;
  }
}

MetricList StepWork::finish(const wire::Batch& last) {
  const Time start = clock_.now();
  require_judged(last.step);
  // Over all samples of the step at once: deviations and maxima of its parts do not add up.
  step_.batch().metrics = trained_on(last.step, sample_metrics(trajectories_, batch_options()));
  const RunShare share = {.begin = last.share_begin, .end = last.share_end};
  const DistillOptions& distill = config_.algo.distill;
  MetricList metrics =
      distill.has_teacher() && distill.kind != DistillLoss::kPolicyGradient
          ? trained_on(last.step, distill_step(stream_, trainer_, step_.batch(), distill, share))
          : step_.finish(held_.version, loss_, share);
  say_why_nothing(last.step, metrics);
  int64_t tokens = 0;
  for (const TrainSequence& s : batch().sequences) tokens += std::ssize(s.tokens);
  seconds_ += seconds_of(clock_.now() - start);
  metrics.emplace_back("time/train", seconds_);
  metrics.emplace_back("perf/train_tokens", static_cast<double>(tokens * config_.train.ppo_epochs));
  return metrics;
}

void StepWork::say_why_nothing(int64_t step, const MetricList& metrics) {
  if (without_signal(metrics))
    log_.warning("step={} without signal: in each group all values of {} are equal", step,
                 config_.algo.filter_metric);
  else if (config_.max_staleness && batch().num_groups() == 0)
    log_.warning("step={} without an update: all that has a signal is older than version {}", step,
                 held_.version - *config_.max_staleness);
  else if (loss_counts(batch(), {0, batch().sequences.size()}).tokens == 0)
    log_.warning("step={} without an update: algo.correction rejected all tokens", step);
}

// A name that no sample knows would turn a filter off without a word. Asked of all samples of the
// first step; later ones may lack it by chance.
void StepWork::require_judged(int64_t step) const {
  const std::string& metric = config_.algo.filter_metric;
  if (metric == AlgoOptions{}.filter_metric || step != 1 || trajectories_.empty()) return;
  if (std::ranges::any_of(trajectories_, [](const auto& t) { return t.judged.has_value(); }))
    return;
  std::set<std::string> known;
  for (const Trajectory& trajectory : trajectories_)
    for (const auto& [name, value] : trajectory.metrics) known.insert(name);
  throw UserError::at(
      "algo.filter_metric",
      "is {}, and none of the {} samples of step 1 has such a metric, so no group can be judged "
      "by it. They have: {}. Start a new run directory with one of these, with a part of "
      "reward.parts, or without the key.",
      metric, trajectories_.size(), known.empty() ? "none" : join_texts(known, ", "));
}

void StepWork::clear() {
  trajectories_.clear();
  step_.clear();
  seconds_ = 0;
}

}  // namespace tailrace
