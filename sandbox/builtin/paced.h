// Episodes whose length and speed are settings: what schedulers are compared on.
//
//   red > red
//   four > four
//
// Observation: a word, then `>`. Action: the same word and a newline; anything else is wrong. A
// right turn gives 1 / turns, so that the reward is the share of right turns. The number of turns
// follows from the task's seed alone, log-normal and cut at max_turns: members of a group have the
// same length, and over prompts lengths have a long tail. Nothing that the policy does ends an
// episode.
//
// A step may take time, log-normal by the task's seed and the actions so far: members of a group
// differ where they act differently. It answers `pending` until that
// has passed: no thread is held, and any number of episodes waits at once, whatever
// rollout.env_threads is (the player asks each of them about every millisecond, which costs CPU
// time). A reset has no such answer, so its time is part of the first step's. What the demonstrator
// answers is not waited for: a warm-up takes no longer.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "sandbox/environment.h"

namespace tailrace::sandbox {

// Settings: turns (8, the median), turns_sigma (0: all equal; of the logarithm), max_turns (64),
// latency_ms (0: none; the median), latency_sigma (0), max_latency_ms (10000; it must stay below
// rollout.step_timeout_s), and of the demonstrator demo_right (0.5: it repeats the word; else any).
std::unique_ptr<Environment> make_paced(const EnvironmentSettings& settings);
// The clock is borrowed.
std::unique_ptr<Environment> make_paced_by(const Clock& clock, const EnvironmentSettings& settings);

}  // namespace tailrace::sandbox
