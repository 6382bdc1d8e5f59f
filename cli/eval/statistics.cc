#include "cli/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"

namespace tailrace {

Estimate wilson(double successes, int64_t trials) {
  auto n = static_cast<double>(trials);
  TR_CHECK(trials >= 1 && successes >= 0 && successes <= n, "{} of {}", successes, trials);
  constexpr double z = 1.959963984540054;  // 97.5 % quantile of the normal distribution
  // Wilson (1927): unlike p +- z sqrt(p (1 - p) / n) it has a width where all or none succeed.
  double p = successes / n;
  double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
  double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  // Rounding must not leave the share itself outside.
  return {p, std::clamp(centre - half, 0.0, p), std::clamp(centre + half, p, 1.0)};
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
  // The 2.5 % and 97.5 % points: a fortieth of the resamples on each side.
  return {sum / static_cast<double>(n), means[kResamples / 40],
          means[kResamples - 1 - kResamples / 40]};
}

Estimate mean_share(std::span<const double> values, Rng& rng) {
  TR_CHECK(!values.empty());
  // A bootstrap of equal values has no width, since every resample is the same. Where all shares
  // are equal, or all are 0 or 1, Wilson's interval says more.
  const bool binary =
      std::ranges::all_of(values, [](double value) { return value == 0 || value == 1; });
  const bool equal =
      std::ranges::all_of(values, [&](double value) { return value == values.front(); });
  if (!binary && !equal) return bootstrap_mean(values, rng);
  return wilson(std::accumulate(values.begin(), values.end(), 0.0), std::ssize(values));
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  TR_CHECK(k >= 1 && k <= n && c >= 0 && c <= n, "n {} c {} k {}", n, c, k);
  if (n - c < k) return 1;
  // C(n - c, k) / C(n, k) as a product, which does not overflow (Chen et al. 2021, 2107.03374).
  double all_fail = 1;
  for (int64_t i = n - c + 1; i <= n; ++i)
    all_fail *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - all_fail;
}

}  // namespace tailrace
