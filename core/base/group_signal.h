// Whether the samples of a group differ, so that there is something to learn from comparing them.
// Everything that calls rewards or sums of them equal asks here: the filter of the scheduler, the
// advantages and the credit of the trainer, the metrics, and what is shown of a run.
//
// Thread: any; values.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

namespace tailrace {

// Rewards are sums, and sums of the same parts may differ in their last digits (0.1 + 0.2 is not
// 0.3). Values are equal where the largest and the smallest of them differ by no more than this
// times the larger of 1 and their magnitude. A program may sum in float32, each time in another
// order: rounding to nearest is off by 6e-8 of a partial sum, and this covers 16 of them.
inline constexpr double kRewardTolerance = 1e-6;

// `size`: of the rewards that these are differences of, where that is more than their own.
inline bool are_equal_rewards(double low, double high, double size = 1) {
  return high - low <= kRewardTolerance * std::max({size, std::abs(low), std::abs(high)});
}

// The two need not be in order.
inline bool same_reward(double a, double b) {
  return are_equal_rewards(std::min(a, b), std::max(a, b));
}

// Whether the samples of one group differ, so that the group has a signal.
class GroupSignal {
 public:
  // `judged`: the value of algo.filter_metric; nothing where the run has none, or the sample lacks
  // it.
  void add(double reward, std::optional<double> judged = {}) {
    rewards_.add(reward);
    if (judged) judged_.add(*judged);
  }

  // By the judged values, of the samples that have one; by the rewards where none has. A group of
  // one has no signal.
  bool has() const { return judged_.count > 0 ? judged_.differ() : rewards_.differ(); }

 private:
  struct Range {
    double low = 0, high = 0;
    int count = 0;
    void add(double value) {
      low = count == 0 ? value : std::min(low, value);
      high = count == 0 ? value : std::max(high, value);
      ++count;
    }
    bool differ() const { return count > 1 && !are_equal_rewards(low, high); }
  };
  Range rewards_, judged_;
};

}  // namespace tailrace
