// The evaluation lane (law 10): held-out prompts on exactly one version. It uses workers first, and
// those that its members may go to keep that version until these are settled (wanted_version()),
// while the trainer goes on. It touches neither credit nor cursor: training sees the
// same prompts and samples with or without it.
#pragma once

#include <vector>

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

// Opens one when the newest version is due: the first, every interval_steps, and, with `last`, the
// one that a finished run ends on.
void open_evaluation(Context& context, PolicyId policy_id, Policy& policy, bool last);

// Members have settled: of each that was open until now `settled_in` has the dataset. Reports when
// the last one has ended.
void settle_evaluation(Context& context, PolicyId policy_id, Policy& policy,
                       const std::vector<int32_t>& settled_in);

EvalDone evaluation_report(PolicyId policy_id, const Evaluation& evaluation);

// The report is on disk: its bodies can go.
void on_eval_reported(Context& context, const EvalReported& event);

// The evaluation begins anew; one behind the frontier goes on without that member.
void on_eval_body_lost(Context& context, Policy& policy, const BodyId& body);

// Versions from `from` on are evaluated again: they have other weights now, or an evaluation has
// lost a body. One that is under way is taken apart, reported or not.
void evaluate_anew(Context& context, Policy& policy, int64_t from);

// Nobody can play or score this held-out prompt: all its samples count as failed for good, and no
// later evaluation asks for them (law 6.10).
void exclude_held_out(Context& context, Policy& policy, const BrokenWord& word);

}  // namespace tailrace::scheduler
