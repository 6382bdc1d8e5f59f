// The updates of a step that learns from its teacher alone, by a loss that is none of advantages
// (DistillationPass): a divergence at the tokens that the policy has sampled, whatever version of
// it did.
//
// Thread: one at a time.
#pragma once

#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "kernels/base/device.h"
#include "trainer/batch.h"
#include "trainer/loss/distillation.h"
#include "trainer/policy_trainer.h"
#include "trainer/train_step.h"

namespace tailrace {

// train.ppo_epochs passes over the minibatches of the batch, each an update. Metrics
// policy/{updates,updates_skipped,loss_tokens,grad_norm,lr} and distillation/..., beside the
// batch's own. A Failure: the teacher's scores of a sequence cannot be used, and no update was
// made.
Result<MetricList> distill_step(const Stream& stream, PolicyTrainer& trainer,
                                const TrainBatch& batch, const DistillOptions& options,
                                RunShare share);

}  // namespace tailrace
