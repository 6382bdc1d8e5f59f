// Versions: publication, checkpoints, and a trainer that comes back with an older one (law 9).
//
// Same digest: the batches that were handed over since are handed over again, in order; workers,
// credit and running groups are left alone, because the same weights will come out. Another digest,
// at the rollback or at a version that is published again: everything sampled from the abandoned
// versions is launched again and the outcomes that rest on it are withdrawn.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on(Context& context, const TrainerWants& event);
void on(Context& context, const Published& event);
void on(Context& context, const Durable& event);
void on(Context& context, const TrainingStage& event);
void on(Context& context, const RolledBack& event);

// The trainer's work is to be asked for again. Credit stays taken.
void on_trainer_lost(Policy& policy);

// The first of the trainers that greeted while another one held the policy takes its place.
void hear_next_trainer(Context& context, PolicyId id);

// The run goes on after all: its end is taken back, and prompts that it had cut off go back to
// where they wait.
void reopen(Context& context);

}  // namespace tailrace::scheduler
