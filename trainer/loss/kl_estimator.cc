#include "trainer/loss/kl_estimator.h"

#include "core/base/error.h"

namespace tailrace {

void KlOptions::visit(OptionVisitor& v) {
  v.field("coef", coef,
          {.help = "weight of the penalty, in the loss or in the reward; 0: off",
           .min = 0,
           .max = 1000});
  v.field("estimator", estimator,
          {.help = "per-token estimate of the divergence, differentiated as a loss; k1 in the "
                   "reward"});
  v.field(
      "target", target,
      {.help = "the other policy: ref (weights at the start of RL) or behaviour (what sampled)"});
  v.field("reference", reference,
          {.help = "the weights of ref: start, those of the policy at the start of RL, behind a "
                   "warm-up (sft) and with the adapter that the run begins with (lora.adapter); or "
                   "base, of an adapter the model without it",
           .idle = idle_if(target != KlTarget::kReference, "{target} is behaviour", {"target"})});
  v.field("placement", placement,
          {.help = "loss: a term of the loss; reward: taken from the reward of each token, of the "
                   "weights that a step starts from"});
  v.field("unbiased", unbiased,
          {.help = "times the probability ratio, so that the gradient of k3 is that of the "
                   "divergence also where older weights sampled",
           .idle = idle_if(!in_loss(), "{placement} is reward", {"placement"})});
}

void validate(const KlOptions& kl, std::string_view section) {
  if (kl.coef == 0) return;
  const std::string estimator = join_key(section, "estimator");
  if (kl.in_loss() && kl.estimator == KlEstimator::kK1)
    throw UserError::at(estimator,
                        "is k1 in the loss, where its expected gradient is 0. Try {0}=k2 (the "
                        "same divergence), or {1}=reward.",
                        estimator, join_key(section, "placement"));
  if (kl.unbiased && kl.estimator != KlEstimator::kK3)
    throw UserError::at(join_key(section, "unbiased"),
                        "is true, which mends the gradient of k3, but {} is {}. Try k3.", estimator,
                        name_of(kl.estimator));
  if (!kl.in_loss() && kl.estimator != KlEstimator::kK1)
    throw UserError::at(estimator,
                        "is {}, but {} is reward, where only k1 has the gradient of the "
                        "divergence. Try k1.",
                        name_of(kl.estimator), join_key(section, "placement"));
}

}  // namespace tailrace
