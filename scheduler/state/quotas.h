// How the prompts of a step are dealt to the datasets of a run (law 1.2).
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tailrace::scheduler {

// Limit of prompts of a step and of an evaluation, as a config may want them.
inline constexpr double kMaxPrompts = 1e6;

// Whole parts of `total` >= 0 in proportion to `ratios` (>= 0), which together are `total`: each
// has its share rounded down, and what is left goes to the largest remainders, of equal ones to the
// first (Hamilton's method). All are 0 where the ratios are.
std::vector<int64_t> quotas(int64_t total, std::span<const double> ratios);

}  // namespace tailrace::scheduler
