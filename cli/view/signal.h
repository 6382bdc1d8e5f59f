// Words behind the numbers of a step: groups without signal (all their rewards are equal), and what
// failed.
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include "core/run/metrics.h"

namespace tailrace {

// "no signal in 16 of 16 groups" of a step in which more than half of the groups had none; else
// empty.
std::string signal_of_step(const MetricsRow& row);

// "3 prompts failed, 12 % of attempts failed" of a step that had any; else empty. What failed is in
// no mean.
std::string exclusions_of_step(const MetricsRow& row);

// The line for a run that went on without something: how many prompts failed for good, how many
// tasks are broken, how many held-out episodes have no reward. Else empty.
std::string exclusions_of_run(std::span<const MetricsRow> rows);

}  // namespace tailrace
