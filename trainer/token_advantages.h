// Masks and advantages of a step's tokens, once their log-probabilities and values under the
// weights that the step starts from are known: which leave the loss, and the others' advantages.
//
// Thread: any; pure functions of the batch.
#pragma once

#include "trainer/batch.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/distillation.h"
#include "trainer/loss/kl_estimator.h"

namespace tailrace {

// With RejectedTokens::kLeave: tokens that algo.correction rejects are masked, and are in no count.
void mask_rejected(TrainBatch& batch, const CorrectionOptions& correction);

// The weight of algo.correction (its `normalize` divides by it), mean over the
// trained tokens of a minibatch; 1 where all weights are 0. Of recorded and old log-probabilities
// alone, so that every rank knows it before its first pass.
double mean_correction(const TrainBatch& batch, const Minibatch& minibatch,
                       const CorrectionOptions& correction);

// As TrainBatch::returns says, and in this order: a KL penalty of the reward is taken from each
// token, or from each sample within its group (ReturnKind); rewards of tokens become what follows
// them, or advantages and returns against old values; advantages are whitened over the unmasked
// tokens of the batch, which must then be the whole step.
void settle_advantages(TrainBatch& batch, const KlOptions& kl);

// Behind it, with a teacher and the loss policy_gradient: takes from each advantage what the token
// was likelier to the policy than to the teacher (distill_advantages()), or puts that in its place.
void add_teacher(TrainBatch& batch, const DistillOptions& distill);

}  // namespace tailrace
