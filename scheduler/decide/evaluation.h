// The evaluation lane (law 10): held-out prompts on exactly one version. It uses workers first, and
// those that sample its members, or could, keep that version (wanted_version()), while the trainer
// and all other workers go on. It touches neither credit nor cursor: training sees the same prompts
// and samples with or without it.
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Opens one when the newest version is due: the first, every interval_steps, and, with `last`, the
// one that a finished run ends on.
void open_evaluation(Context& context, PolicyId policy_id, Policy& policy, bool last);

// Recalls, for each pool in `held_out`, one worker to the evaluated version, where held-out members
// wait and no other worker can sample them (law 10.1). In a replay nobody goes back.
void recall_workers(Context& context);

// Members have settled, so many of which were open until now. Reports when the last one has ended.
void settle_evaluation(Context& context, PolicyId policy_id, Policy& policy, int64_t num_settled);

EvalDone evaluation_report(PolicyId policy_id, const Evaluation& evaluation);

// The report is on disk: its bodies can go.
void on(Context& context, const EvalReported& event);

// The member is sampled again, and the evaluation reported again.
void on_eval_body_lost(Context& context, Policy& policy, const BodyId& body);

// Versions from `from` on are evaluated again: they have other weights now. An evaluation that is
// under way is taken apart, reported or not.
void evaluate_anew(Context& context, Policy& policy, int64_t from);

// Nobody can play or score this held-out prompt: all its samples count as failed for good, and no
// later evaluation asks for them (law 6.10).
void exclude_held_out(Context& context, Policy& policy, const BrokenWord& word);

}  // namespace tailrace::scheduler
