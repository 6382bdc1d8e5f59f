// Countdown: reach the target with + - * / and each given number exactly once. One turn.
//
//   numbers 3 7 12 target 43 > <answer> 12 * 3 + 7 </answer>
//
// The task is drawn from the seed and always has a solution. The verifier `countdown` scores the
// episode.
#pragma once

#include <memory>

#include "sandbox/environment.h"
#include "sandbox/settings_schema.h"

namespace tailrace::sandbox {

const SettingsSchema& countdown_settings();
std::unique_ptr<Environment> make_countdown(const EnvironmentSettings& settings);

}  // namespace tailrace::sandbox
