// The supervised training before the first step, or of a run that is nothing else. It goes on from
// a checkpoint of its own where it was killed.
//
// Thread: one at a time.
#pragma once

#include <functional>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/messages/message.h"
#include "core/run/log.h"
#include "trainer/checkpoint.h"
#include "trainer/policy_trainer.h"
#include "trainer/sft.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class WarmUp {
 public:
  // report: after some of the updates. stops: asked behind each update; true: a person has stopped
  // the run.
  struct Owner {
    std::function<void(const wire::Progress&)> report;
    std::function<bool()> stops;
  };
  // Borrows all but the owner; `base`: of an adapter, else empty.
  WarmUp(const TrainerWorkerConfig& config, PolicyTrainer& trainer, const Digest& base, Log& log,
         Owner owner);

  // All updates of config.sft, or those until it stops, which it saves. The metrics of the last
  // one, and of the last evaluation. Throws UserError.
  MetricList run();

 private:
  void resume(RowTask& task);
  MetricList evaluate(RowTask& task);
  void report(const RowTask& task, const MetricList& metrics);
  void save(const RowTask& task);

  const TrainerWorkerConfig& config_;
  PolicyTrainer& trainer_;
  const Digest& base_;
  Log& log_;
  Owner owner_;
  CheckpointFolder saved_;
};

}  // namespace tailrace
