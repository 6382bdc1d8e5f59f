#include "trainer/loss/advantage.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {

bool divides_by_std(AdvantageKind kind) {
  return kind == AdvantageKind::kGroupMeanStd || kind == AdvantageKind::kGroupMeanBatchStd;
}

MeanStd mean_std(std::span<const double> values) {
  MeanStd result;
  if (values.empty()) return result;
  auto n = static_cast<double>(values.size());
  for (double v : values) result.mean += v;
  result.mean /= n;
  if (values.size() < 2) return result;
  double squares = 0;
  for (double v : values) squares += (v - result.mean) * (v - result.mean);
  result.std = std::sqrt(squares / (n - 1));
  return result;
}

GroupAdvantages group_advantages(AdvantageKind kind, double std_eps,
                                 std::span<const double> rewards,
                                 std::span<const int32_t> group_offsets) {
  GroupAdvantages result;
  result.advantage.assign(rewards.size(), 0.0);
  // Of all samples, those of groups without signal included.
  double batch_std = mean_std(rewards).std;
  for (size_t g = 0; g + 1 < group_offsets.size(); ++g) {
    auto begin = static_cast<size_t>(group_offsets[g]),
         end = static_cast<size_t>(group_offsets[g + 1]);
    TR_CHECK(begin < end && end <= rewards.size(), "group {}: {}..{} of {}", g, begin, end,
             rewards.size());
    auto group = rewards.subspan(begin, end - begin);
    auto [low, high] = std::ranges::minmax(group);
    // Compared rather than derived from the deviation: the mean of equal rewards may round.
    bool zero = low == high;
    result.zero_signal.push_back(zero);
    if (zero) continue;
    auto [mean, std] = mean_std(group);
    auto n = static_cast<double>(group.size());
    double scale = 1;
    switch (kind) {
      case AdvantageKind::kGroupMean:
        break;
      case AdvantageKind::kGroupMeanStd:
        scale = 1 / (std + std_eps);
        break;
      case AdvantageKind::kGroupMeanBatchStd:
        scale = 1 / (batch_std + std_eps);
        break;
      case AdvantageKind::kLeaveOneOut:
        // r - (S - r) / (n - 1) with S = n mean (Kool et al. 2019). n is at least 2: a group of one
        // has no signal.
        scale = n / (n - 1);
        break;
    }
    for (size_t i = 0; i < group.size(); ++i)
      result.advantage[begin + i] = (group[i] - mean) * scale;
  }
  return result;
}

}  // namespace tailrace
