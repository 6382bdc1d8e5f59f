#include "trainer/loss/kl_estimator.h"

#include <cmath>

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

}  // namespace tailrace
