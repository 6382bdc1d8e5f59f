// Means with their uncertainty, for evaluations.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/random.h"

namespace tailrace {

// A mean and its 95 % confidence interval.
struct Estimate {
  double mean = 0, low = 0, high = 0;
};

// Share of successes among independent trials, with Wilson's score interval. trials >= 1. A trial
// may succeed in part: a value from 0 to 1 varies at most as much as a coin of the same mean, so
// that the interval is then wider than it need be.
Estimate wilson(double successes, int64_t trials);

// Mean of `values` with the percentile bootstrap over them (2000 resamples). Values must be
// independent of each other: one a prompt, the mean of its samples. Not empty.
Estimate bootstrap_mean(std::span<const double> values, Rng& rng);

// Mean of values from 0 to 1 (shares of success, pass@k), each of its own prompt. Wilson's interval
// where each is 0 or 1, and where all are equal, as resampling equal values shows no uncertainty at
// all; else the bootstrap. Not empty.
Estimate mean_share(std::span<const double> values, Rng& rng);

// Probability that at least one of k samples drawn without replacement from n succeeds, c of which
// do: 1 - C(n - c, k) / C(n, k), the unbiased estimate of pass@k (2107.03374, eq. 1). 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

}  // namespace tailrace
