#include "scheduler/state/quotas.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tailrace::scheduler {

std::vector<int64_t> quotas(int64_t total, std::span<const double> ratios) {
  std::vector<int64_t> parts(ratios.size());
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  if (sum <= 0) return parts;
  std::vector<double> remainders(ratios.size());
  for (size_t i = 0; i < ratios.size(); ++i) {
    const double share = static_cast<double>(total) * ratios[i] / sum;
    parts[i] = static_cast<int64_t>(std::floor(share));
    remainders[i] = share - std::floor(share);
  }
  std::vector<size_t> order(ratios.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return remainders[i]; });
  // A share that rounding took below a whole number has the largest remainder and gets it back, so
  // that less than one is left for each.
  int64_t left = total - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (size_t i = 0; left > 0 && i < order.size(); ++i, --left) ++parts[order[i]];
  return parts;
}

}  // namespace tailrace::scheduler
