// Countdown: reach the target with + - * / and each given number exactly once. One turn.
//
//   numbers 3 7 12 target 43 > <answer> 12 * 3 + 7 </answer>
//
// The task is drawn from the seed and always has a solution. The verifier `countdown` scores the
// episode.
#pragma once

#include <memory>

#include "sandbox/environment.h"

namespace tailrace::sandbox {

// Settings: min_numbers (3), max_numbers (4), max_number (25), max_target (99), and of the
// demonstrator demo_solve (0.6, a right answer) and demo_invalid (0.05, no answer tags); else it
// guesses a formula.
std::unique_ptr<Environment> make_countdown(const EnvironmentSettings& settings);

}  // namespace tailrace::sandbox
