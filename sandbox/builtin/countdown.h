// Countdown: reach the target with + - * / and each given number exactly once. One turn.
//
//   numbers 3 7 12 target 43 > <answer> 12 * 3 + 7 </answer>
//
// The task is drawn from the seed and always has a solution. The verifier `countdown` scores the
// episode.
#pragma once

#include "tailrace/library.h"

namespace tailrace::sandbox {

void declare_countdown(Library& library);

}  // namespace tailrace::sandbox
