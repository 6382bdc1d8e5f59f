#include "scheduler/decide/decide.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/batches.h"
#include "scheduler/decide/ending.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/lineage.h"
#include "scheduler/decide/placement.h"
#include "scheduler/decide/ranks.h"
#include "scheduler/decide/release.h"
#include "scheduler/decide/rounds.h"
#include "scheduler/decide/sessions.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// Each part of the law says in its header which events it answers.
void on(Context&, const Tick&) {}

// An event passes by some twenty parts of the law that mostly have nothing to do. The questions
// below are asked here, side by side, before these parts are called: their code together is more
// than the instruction cache of a core holds, and what is not called need not be in it.

// Whatever event told us the time: deadlines that have passed are dealt with, so that the next one
// always lies ahead.
void expire(Context& context) {
  const State& state = context.state;
  const bool lease_is_due = !state.leases.empty() && state.leases.next_deadline() <= state.now;
  const bool rest_is_over = !state.rest_ends.empty() && *state.rest_ends.begin() <= state.now;
  if (lease_is_due || rest_is_over) expire_leases(context);
  const auto& deadlines = state.index.deadlines();
  if (deadlines.empty() || deadlines.begin()->first > state.now) return;
  expire_installs(context);
  expire_absences(context);
}

// Settles the groups whose members settled in this event. Several members settle their
// group once, and a change of lineage may have taken the group apart in the meantime.
void settle(Context& context) {
  if (context.broken.empty() && context.settled.empty()) return;
  for (const BrokenWord& word : std::exchange(context.broken, {})) {
    Policy& policy = context.state.policies.at(word.task.policy);
    (word.lane == Lane::kEval ? exclude_held_out : exclude_task)(context, policy, word);
  }
  std::set<TaskId> groups;
  std::map<PolicyId, int64_t> evaluations;  // members of theirs
  for (const auto& [work, was_open] : std::exchange(context.settled, {})) {
    const Task* task = find_task(context.state, work.lane, work.member);
    if (task == nullptr || task->place != Place::kRunning) continue;
    if (work.lane == Lane::kEval) {
      evaluations[work.member.policy] += was_open ? 1 : 0;
    } else {
      groups.insert(task_of(work.member));
    }
  }
  for (const TaskId& id : groups) settle_task(context, context.state.policies.at(id.policy), id);
  for (const auto& [id, count] : evaluations)
    settle_evaluation(context, id, context.state.policies.at(id), count);
}

// Installs before grants: a worker that is to change its weights gets no work that it could not
// begin. But for what is to be sampled by weights that others have come past: it keeps its worker.
// With the last of these that waits, workers may go on to the newest version.
void place(Context& context) {
  const State& state = context.state;
  const auto to_follow = [&] { return may_have_held_out(state); };
  if (!state.waiting.empty() && state.waiting.begin()->first.lane == Lane::kEval)
    grant_held_out(context);
  if (to_follow()) follow_evaluations(context.state);
  do {
    if (!state.index.behind().empty() || !state.held_out.empty()) refresh_workers(context);
    if (!state.waiting.empty() && state.index.num_seats() > 0) grant_waiting(context);
  } while (to_follow() && follow_evaluations(context.state));
}

bool has_broken_tasks(const Policy& policy) {
  return std::ranges::any_of(policy.datasets,
                             [](const Dataset& dataset) { return dataset.broken.found > 0; });
}

bool may_be_saved(const std::pair<const PolicyId, Policy>& entry) {
  const Policy& policy = entry.second;
  return policy.durable < policy.published && policy.saving != policy.published;
}

// Not as long as a round is open, but at the last step or by a stop.
bool may_end(const State& state) {
  if (state.stopping || state.end) return true;
  const int64_t steps = state.config.steps;
  return std::ranges::all_of(state.policies, [&](const auto& entry) {
    const Policy& policy = entry.second;
    return policy.rounds.empty() || (steps > 0 && policy.published >= steps);
  });
}

// Does all that any event may have made possible. Called twice, it does nothing the second time.
void proceed(Context& context) {
  State& state = context.state;
  // Late results are still taken, so that a run that is continued finds them (law 7.7).
  if (state.ended || !state.halted.empty()) return settle(context);
  // Deadlines first: members that they fail are settled with those of the event.
  expire(context);
  settle(context);
  // One of these faults may have been the last that the law allows.
  if (!state.halted.empty()) return;
  const bool working = !state.stopping && !state.end;
  for (auto& [id, policy] : state.policies) {
    if (!working) break;
    if (has_broken_tasks(policy)) halt_without_tasks(context, policy);
    if (!state.halted.empty()) return;
    open_rounds(context, id, policy);
    // Before the hand-over: one that is due opens before the version after it can come (law 10.1).
    if (state.config.eval.prompts > 0)
      open_evaluation(context, id, policy, finished(state, policy));
  }
  // A checkpoint before the batch after it: the trainer does one thing after the other.
  if (std::ranges::any_of(state.policies, may_be_saved)) request_saves(context);
  for (auto& [id, policy] : state.policies)
    if (policy.told_released < policy.released || policy.told_fetched_from < policy.fetched_from)
      tell_released(context, id, policy);
  if (working) {
    for (auto& [id, policy] : state.policies) {
      if (state.config.trainer_ranks > 1) form_ranks(context, id, policy);
      if (policy.wanted && !policy.handed) hand_over(context, id, policy);
    }
  }
  if (may_end(state)) advance_end(context);
  if (state.stopping || state.end) return;
  // Last, when all work that this event makes is there to choose from.
  place(context);
  // After what has nobody at all. In a mode that drains, who stands still is drained by it; its
  // install takes no room from anybody.
  bool moved = false;
  while (!state.index.stuck().empty() && move_stalled(context)) {
    moved = true;
    // More work runs at other workers by the move, and each one's part grows with it (law 6.6).
    place(context);
  }
  // Work that was moved may run on newer weights than before: a step that had to wait for it may
  // not have to any more (law 4.2).
  for (auto& [id, policy] : state.policies) {
    if (moved) hand_over(context, id, policy);
  }
  if (!state.to_verify.empty()) verify_waiting(context);
}

}  // namespace

Actions decide(State& state, const Event& event, Time now) {
  // Law 2.4. A replayed journal brings the times of then.
  state.now = std::max(state.now, now);
  while (!state.index.wakes().empty() && state.index.wakes().begin()->first <= state.now)
    touch(state, WorkerId(state.index.wakes().begin()->second));
  Context context{.state = state, .actions = {}, .settled = {}};
  std::visit([&](const auto& e) { on(context, e); }, event);
  proceed(context);
  // Also where nothing is placed any more: what is derived is what would be read from the disk.
  if (may_have_held_out(state)) follow_evaluations(state);
  return std::move(context.actions);
}

}  // namespace tailrace::scheduler
