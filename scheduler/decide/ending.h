// How a run ends (law 11): nothing is left to do, then the last version is safe, then it is over.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on(Context& context, const StopRequested& event);

// The limit of steps is reached, or nothing more can be started: what is left is the evaluation of
// the last version, and its checkpoint.
bool finished(const State& state, const Policy& policy);

// Asks trainers for checkpoints: at every interval, after the last step, and when the run ends.
// Each is asked for once in a session of the trainer.
void request_saves(Context& context);

// Takes the end one step further. RunDone comes when the last version is durable, when the deadline
// for that has passed, or, after a stop, when there is no trainer to save it: the run can be
// continued.
void advance_end(Context& context);

}  // namespace tailrace::scheduler
