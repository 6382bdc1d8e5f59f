// Per-token estimates of KL(policy || other) at a sampled token, used as losses (J. Schulman's
// k1..k3).
#pragma once

#include <cstdint>

#include "core/base/enum_names.h"

namespace tailrace {

enum class KlEstimator : uint8_t { kK1, kK2, kK3 };
constexpr auto enum_names(KlEstimator) {
  using enum KlEstimator;
  return name_table<KlEstimator>({{kK1, "k1"}, {kK2, "k2"}, {kK3, "k3"}});
}

struct KlTerm {
  double value = 0, d_logprob = 0;
};

// x = log policy - log other:  k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x.
// On-policy the expected gradient of k1 is zero, of k2 that of KL(policy || other), of k3 that of
// KL(other || policy).
KlTerm kl_term(KlEstimator estimator, double x);

}  // namespace tailrace
