// Learning rates in the words of a plan.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/options.h"

namespace tailrace {

// "0.0007"; of one that changes "0.0007, linear: 0.00014 in the first update, 7.1e-05 in the last".
// `updates`: of the run, where all are made; 0: not known.
std::string describe_rate(const OptimOptions& optim, int64_t updates);

}  // namespace tailrace
