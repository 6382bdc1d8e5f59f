#include "trainer/loss/kl_estimator.h"

#include <cmath>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {

KlTerm kl_term(KlEstimator estimator, double x) {
  // With x = l - l_other, so d/dl is d/dx: the other policy is fixed (J. Schulman, "Approximating
  // KL divergence", 2020).
  switch (estimator) {
    case KlEstimator::kK1:
      return {x, 1};
    case KlEstimator::kK2:
      return {x * x / 2, x};
    // expm1 keeps the digits near x = 0, where the value is about x^2 / 2.
    case KlEstimator::kK3:
      return {std::expm1(-x) + x, -std::expm1(-x)};
  }
  TR_CHECK(false, "KL estimator {}", static_cast<int>(estimator));
  return {};
}

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
