// The work of a step as its batch comes: parts become groups of sequences, and groups the updates
// of a TrainStep.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/metric_list.h"
#include "core/run/log.h"
#include "core/trajectory/trajectory.h"
#include "trainer/batch.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/batch_fetch.h"
#include "trainer/worker/held_version.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class StepWork {
 public:
  // Borrows all.
  StepWork(const TrainerWorkerConfig& config, const Stream& stream, PolicyTrainer& trainer,
           const HeldVersion& held, Log& log, const Clock& clock);

  const PolicyLossConfig& loss() const { return loss_; }

  // A whole batch or a part of it, whose bodies are there. Throws UserError where it cannot be
  // trained on.
  void add(const BatchFetch& part);
  // Behind the last part: the updates. Their metrics, those of all samples, and of the work itself.
  // Says when there is none. Throws UserError.
  MetricList finish(const wire::Batch& last);
  void clear();

  // Since clear().
  const std::vector<Trajectory>& trajectories() const { return trajectories_; }
  const TrainBatch& batch() const { return step_.batch(); }

 private:
  BatchOptions batch_options() const;
  void add_groups(int64_t step, std::span<const Trajectory> groups);
  void require_judged(int64_t step) const;
  void say_why_nothing(int64_t step, const MetricList& metrics);

  const TrainerWorkerConfig& config_;
  Stream stream_;
  PolicyTrainer& trainer_;
  const HeldVersion& held_;
  Log& log_;
  const Clock& clock_;
  PolicyLossConfig loss_;
  TrainStep step_;
  std::vector<Trajectory> trajectories_;
  double seconds_ = 0;
};

}  // namespace tailrace
