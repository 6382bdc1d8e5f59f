#include "cli/statistics.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {

Estimate wilson(int64_t successes, int64_t trials) {
  TR_CHECK(trials >= 1 && successes >= 0 && successes <= trials, "{} of {}", successes, trials);
  constexpr double z = 1.959963984540054;  // 97.5 % quantile of the normal distribution
  auto n = static_cast<double>(trials);
  double p = static_cast<double>(successes) / n;
  double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
  double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return {p, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

Estimate bootstrap_mean(std::span<const double> values, Rng& rng) {
  TR_CHECK(!values.empty());
  constexpr size_t kResamples = 2000;
  auto n = static_cast<int64_t>(values.size());
  double sum = 0;
  for (double value : values) sum += value;
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double drawn = 0;
    for (int64_t i = 0; i < n; ++i) drawn += values[static_cast<size_t>(rng.below(n))];
    mean = drawn / static_cast<double>(n);
  }
  std::sort(means.begin(), means.end());
  return {sum / static_cast<double>(n), means[kResamples / 40],
          means[kResamples - 1 - kResamples / 40]};
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  TR_CHECK(k >= 1 && k <= n && c >= 0 && c <= n, "n {} c {} k {}", n, c, k);
  if (n - c < k) return 1;
  double all_fail = 1;
  for (int64_t i = n - c + 1; i <= n; ++i)
    all_fail *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - all_fail;
}

}  // namespace tailrace
