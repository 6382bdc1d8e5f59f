// Group-relative advantages: how much better a sample did than its siblings.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/enum_names.h"

namespace tailrace {

enum class AdvantageKind : uint8_t {
  kGroupMean,          // r - mean                        Dr. GRPO, 2503.20783
  kGroupMeanStd,       // (r - mean) / (std + eps)        GRPO, 2402.03300
  kGroupMeanBatchStd,  // (r - mean) / (std of all raw rewards + eps)   Lite PPO, 2508.08221
  kLeaveOneOut,        // r - mean of the others = n / (n - 1) (r - mean)   RLOO
};
constexpr auto enum_names(AdvantageKind) {
  using enum AdvantageKind;
  return name_table<AdvantageKind>({{kGroupMean, "group_mean"},
                                    {kGroupMeanStd, "group_mean_std"},
                                    {kGroupMeanBatchStd, "group_mean_batch_std"},
                                    {kLeaveOneOut, "leave_one_out"}});
}

// Whether it divides by a deviation, and so reads std_eps.
bool divides_by_std(AdvantageKind kind);

// What becomes of groups whose rewards are all equal.
enum class ZeroSignalFilter : uint8_t {
  kNone,  // they stay, with advantages of 0
  kDrop,  // they leave the batch and the denominators
};
constexpr auto enum_names(ZeroSignalFilter) {
  using enum ZeroSignalFilter;
  return name_table<ZeroSignalFilter>({{kNone, "none"}, {kDrop, "drop"}});
}

struct GroupAdvantages {
  std::vector<double> advantage;  // [samples]
  // [groups] all rewards equal (or one sample): nothing to learn from.
  std::vector<bool> zero_signal;
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
