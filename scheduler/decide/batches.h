// Batches: the groups of a step, formed from what is complete, and the lists of them that a trainer
// is given (laws 3.6 and 4.2).
#pragma once

#include <cstdint>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Answers `wanted`: a batch that was formed before, or a new one once the step is complete
// (HandOverBy::kGroups: what of it is, part by part) and no older version is evaluated or waits to
// be reported (workers hold it until then).
void hand_over(Context& context, PolicyId policy_id, Policy& policy);

// The trainer is told the list of its step from the beginning, when it asks or is there.
void forget_told(Policy& policy);

// The list of a step whose batch is formed, without the first `told` groups, which had `first`
// items: these are not looked at.
HandOver make_hand_over(PolicyId policy_id, const Policy& policy, int64_t step, int64_t told = 0,
                        int64_t first = 0);

// A list that is not whole, and that nobody can have published: its groups are ready again, before
// those that came later, and the trainer gets another list.
void take_apart(Policy& policy, int64_t step);

}  // namespace tailrace::scheduler
