// How many groups may exist beyond what the trainer has consumed (law 3.1), in whole groups, per
// policy and dataset:
//
//   ready + handed over and not yet published + reserved by open rounds <= floor((1 + ahead) * q)
//
// "Held now", never a running total: filtered groups and short steps would make a total drift until
// no round opens any more. A batch of a lost trainer stays handed over, so it frees nothing.
#pragma once

#include <cstdint>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

int64_t credit(const Config& config, int32_t dataset);

// Left side of the law.
int64_t credit_held(const Policy& policy, int32_t dataset);

// Places reserved by open rounds: what they keep and have not accepted yet, never their surplus.
int64_t reserved(const Policy& policy, int32_t dataset);

}  // namespace tailrace::scheduler
