// Whether a run had anything to learn from: a group whose rewards are all equal has no signal.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/metrics.h"

namespace tailrace {

// Steps without signal in a row that are no bad luck any more: unlucky groups make one now and
// then.
inline constexpr int64_t kSilentSteps = 5;

// How many of the latest steps in a row had no signal in any of their groups.
int64_t steps_without_signal(std::span<const MetricsRow> rows);

// "no signal in 16 of 16 groups" of a step in which more than half of the groups had none; else
// empty.
std::string signal_of_step(const MetricsRow& row);

// "3 prompts failed, 12 % of attempts failed" of a step that had any; else empty. What failed is in
// no mean.
std::string exclusions_of_step(const MetricsRow& row);

// The line for a run that went on without something: how many prompts failed for good, how many
// tasks are broken, how many held-out episodes have no reward. Else empty.
std::string exclusions_of_run(std::span<const MetricsRow> rows);

// In the latest step each sample was a success, where the environment says so: that nothing is
// left to learn is no fault then.
bool is_solved(std::span<const MetricsRow> rows);

// The sentence for a run that had no signal in any of its steps, or in its last kSilentSteps or
// more; else empty.
std::string signal_of_run(std::span<const MetricsRow> rows);

}  // namespace tailrace
