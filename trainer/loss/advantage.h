// Axis "advantage" of the policy loss: how much better a sample did than could be expected.
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
  kLeaveOneOut,        // r - mean of the others = n / (n - 1) (r - mean)   RLOO, 2402.14740
  kGreedy,             // r - reward of the group's greedy member   ReMax, 2310.10505
  kReward,             // r: no baseline   REINFORCE++, 2501.03262
  kGae,                // r here; token by token against a value head later (returns.h)
};
constexpr auto enum_names(AdvantageKind) {
  using enum AdvantageKind;
  return name_table<AdvantageKind>({{kGroupMean, "group_mean"},
                                    {kGroupMeanStd, "group_mean_std"},
                                    {kGroupMeanBatchStd, "group_mean_batch_std"},
                                    {kLeaveOneOut, "leave_one_out"},
                                    {kGreedy, "greedy"},
                                    {kReward, "reward"},
                                    {kGae, "gae"}});
}

// Whether it divides by a deviation, and so reads std_eps.
bool divides_by_std(AdvantageKind kind);

// Whether it needs the values of a critic.
bool needs_critic(AdvantageKind kind);

// Whether the members of a group are each other's baseline, so that equal rewards teach nothing.
bool compares_members(AdvantageKind kind);

// The treatment of groups without signal (GroupAdvantages::zero_signal).
enum class ZeroSignalFilter : uint8_t {
  kNone,  // they stay, with advantages of 0
  kDrop,  // they leave the batch and the denominators
};
constexpr auto enum_names(ZeroSignalFilter) {
  using enum ZeroSignalFilter;
  return name_table<ZeroSignalFilter>({{kNone, "none"}, {kDrop, "drop"}});
}

// advantage = (reward - baseline) * scale, all [samples].
struct GroupAdvantages {
  std::vector<double> advantage, baseline, scale;
  // [groups] nothing to learn from: all rewards equal (are_equal_rewards(), or one sample), of a
  // kind that compares_members().
  std::vector<bool> zero_signal;
};

// rewards [samples], the members of a group side by side; group_offsets [groups + 1]. Deviations
// divide by n - 1. A group without signal gets exactly 0, a group of one included: there is no
// baseline for it.
//   greedy [samples]  of kGreedy: 1 for the member that sampled greedily. It has the advantage 0.
//                     In a group that lost it the others are the baseline of each.
GroupAdvantages group_advantages(AdvantageKind kind, double std_eps,
                                 std::span<const double> rewards,
                                 std::span<const int32_t> group_offsets,
                                 std::span<const uint8_t> greedy = {});

struct MeanStd {
  double mean = 0, std = 0;  // std with n - 1; 0 for fewer than two values
};
MeanStd mean_std(std::span<const double> values);

}  // namespace tailrace
