// The evaluation lane (law 10): held-out prompts on exactly one version. It uses workers first, and
// the trainer gets no batch while one is open, so that the weights cannot move under it. It touches
// neither credit nor cursor: training sees the same prompts and samples with or without it.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Opens one when the newest version is due: the first, every interval_steps, and, with `last`, the
// one that a finished run ends on.
void open_evaluation(Context& context, PolicyId policy_id, Policy& policy, bool last);

// Reports when the last member has ended.
void settle_evaluation(Context& context, PolicyId policy_id, Policy& policy);

EvalDone evaluation_report(PolicyId policy_id, const Evaluation& evaluation);

// The report is on disk: its bodies can go.
void on_eval_reported(Context& context, const EvalReported& event);

// Versions from `from` on are evaluated again: they have other weights now, or an evaluation has
// lost a body. One that is under way is taken apart, reported or not.
void evaluate_anew(Context& context, Policy& policy, int64_t from);

}  // namespace tailrace::scheduler
