#include "trainer/loss/advantage.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/group_signal.h"
#include "kernels/base/check.h"

namespace tailrace {

bool divides_by_std(AdvantageKind kind) {
  return kind == AdvantageKind::kGroupMeanStd || kind == AdvantageKind::kGroupMeanBatchStd;
}

bool needs_critic(AdvantageKind kind) { return kind == AdvantageKind::kGae; }

bool compares_members(AdvantageKind kind) {
  return kind != AdvantageKind::kReward && !needs_critic(kind);
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

namespace {

// The mean reward of the greedy members of a group; nothing where there is none.
std::optional<double> greedy_baseline(std::span<const double> rewards,
                                      std::span<const uint8_t> greedy) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < greedy.size(); ++i) {
    if (greedy[i] == 0) continue;
    sum += rewards[i];
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

}  // namespace

GroupAdvantages group_advantages(AdvantageKind kind, double std_eps,
                                 std::span<const double> rewards,
                                 std::span<const int32_t> group_offsets,
                                 std::span<const uint8_t> greedy) {
  TR_CHECK(greedy.empty() || greedy.size() == rewards.size(), "{} of {}", greedy.size(),
           rewards.size());
  GroupAdvantages result;
  auto& [advantage, baseline, scale, zero_signal] = result;
  advantage.assign(rewards.size(), 0.0);
  baseline.assign(rewards.size(), 0.0);
  scale.assign(rewards.size(), 1.0);
  // The deviation of all samples, those of groups without signal included.
  double batch_std = mean_std(rewards).std;
  for (size_t g = 0; g + 1 < group_offsets.size(); ++g) {
    auto begin = static_cast<size_t>(group_offsets[g]),
         end = static_cast<size_t>(group_offsets[g + 1]);
    TR_CHECK(begin < end && end <= rewards.size(), "group {}: {}..{} of {}", g, begin, end,
             rewards.size());
    auto group = rewards.subspan(begin, end - begin);
    auto [low, high] = std::ranges::minmax(group);
    // Compared rather than derived from the deviation: the mean of equal rewards may round.
    bool zero = compares_members(kind) && are_equal_rewards(low, high);
    zero_signal.push_back(zero);
    auto [mean, std] = mean_std(group);
    auto n = static_cast<double>(group.size());
    double base = mean, factor = 1;
    switch (kind) {
      case AdvantageKind::kGroupMean:
        break;
      case AdvantageKind::kGroupMeanStd:
        factor = 1 / (std + std_eps);
        break;
      case AdvantageKind::kGroupMeanBatchStd:
        factor = 1 / (batch_std + std_eps);
        break;
      case AdvantageKind::kLeaveOneOut:
        // r - (S - r) / (n - 1) with S = n mean (Kool et al. 2019). A group of one has no signal.
        factor = zero ? 1 : n / (n - 1);
        break;
      case AdvantageKind::kGreedy:
        if (const auto own = greedy_baseline(
                group, greedy.empty() ? greedy : greedy.subspan(begin, end - begin)))
          base = *own;
        else if (!zero)
          factor = n / (n - 1);  // it failed for good: the others are the baseline
        break;
      case AdvantageKind::kReward:
      case AdvantageKind::kGae:
        base = 0;
        break;
    }
    for (size_t i = begin; i < end; ++i) {
      // Its own reward as baseline: exactly 0, however a mean has rounded.
      const bool is_baseline = kind == AdvantageKind::kGreedy && !greedy.empty() && greedy[i] != 0;
      const bool silent = zero || is_baseline;
      baseline[i] = silent ? rewards[i] : base;
      // Without a deviation a division is noise over eps.
      scale[i] = silent ? 1 : factor;
      advantage[i] = (rewards[i] - baseline[i]) * scale[i];
    }
  }
  return result;
}

}  // namespace tailrace
