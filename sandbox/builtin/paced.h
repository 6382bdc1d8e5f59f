// Episodes whose length and speed are settings: what schedulers are compared on.
//
//   red > red
//   four > four
//
// Observation: a word, then `>`. Action: the same word and a newline; anything else is wrong. The
// reward comes at the end and is the share of right turns. Their number is log-normal and cut at
// max_turns. It follows from the task's seed: over prompts lengths have a long tail, and members of
// a group are alike. Members may differ too: then the first four actions of an episode are a number
// by which its length is drawn, about that of its prompt, and in some prompts a share of the
// members runs to max_turns whatever it does. Which actions make an episode short nobody can learn.
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
#include "tailrace/env.h"
#include "tailrace/library.h"

namespace tailrace::sandbox {

void declare_paced(Library& library);
// One by this clock, which is borrowed.
std::unique_ptr<Env> make_paced(const Settings& settings, const Clock& clock);

}  // namespace tailrace::sandbox
