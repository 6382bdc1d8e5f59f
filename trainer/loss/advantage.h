// Group-relative advantages: how much better a sample did than its siblings.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tailrace {

enum class AdvantageKind : uint8_t {
  kGroupMean,          // r - mean                        Dr. GRPO, 2503.20783
  kGroupMeanStd,       // (r - mean) / (std + eps)        GRPO, 2402.03300
  kGroupMeanBatchStd,  // (r - mean) / (std of all raw rewards + eps)   Lite PPO, 2508.08221
  kLeaveOneOut,        // r - mean of the others = n / (n - 1) (r - mean)   RLOO
};
AdvantageKind parse_advantage(std::string_view name);  // a value of algo.advantage

struct GroupAdvantages {
  std::vector<double> advantage;  // [samples]
  std::vector<bool>
      zero_signal;  // [groups] all rewards equal (or one sample): nothing to learn from
};

// rewards [samples], the members of a group side by side; group_offsets [groups + 1]. Deviations
// divide by n - 1. A group without signal gets exactly 0, a group of one included: there is no
// baseline for it.
GroupAdvantages group_advantages(AdvantageKind kind, double std_eps,
                                 std::span<const double> rewards,
                                 std::span<const int32_t> group_offsets);

struct MeanStd {
  double mean = 0, std = 0;  // std with n - 1; 0 for fewer than two values
};
MeanStd mean_std(std::span<const double> values);

}  // namespace tailrace
