#include "scheduler/decide/ending.h"

#include <algorithm>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/rounds.h"

namespace tailrace::scheduler {
namespace {

bool steps_done(const State& state, const Policy& policy) {
  return state.config.steps > 0 && policy.published >= state.config.steps;
}

// Why the run has nothing left to do; nothing: it has.
std::optional<RunEnd::Reason> reason_to_end(const State& state) {
  if (state.stopping) {
    // A step that is being trained is nearly done, and would be lost.
    const bool training =
        std::ranges::any_of(state.policies, [](const auto& entry) { return entry.second.handed; });
    if (training && state.now < state.stop_deadline) return std::nullopt;
    return RunEnd::Reason::kStopped;
  }
  // The data has ended if any policy stopped short of the limit.
  bool by_steps = true;
  for (const auto& [id, policy] : state.policies) {
    if (!finished(state, policy) || policy.evaluation) return std::nullopt;
    by_steps = by_steps && steps_done(state, policy);
  }
  return by_steps ? RunEnd::Reason::kSteps : RunEnd::Reason::kDataEnd;
}

// Nothing more will be saved: it is, nobody could, or it took too long.
bool safe_or_hopeless(const State& state) {
  if (state.now >= state.end_deadline) return true;
  return std::ranges::all_of(state.policies, [&](const auto& entry) {
    const Policy& policy = entry.second;
    // After a restart only a trainer knows whether its checkpoint still reads back.
    if (saved(policy) && policy.greeted) return true;
    // A run that ended by itself waits for an absent trainer, until the deadline: its last version
    // is what it was for. A stopped one can be continued.
    return state.end->reason == RunEnd::Reason::kStopped && trainer_of(state, policy) == nullptr;
  });
}

}  // namespace

bool finished(const State& state, const Policy& policy) {
  return at_frontier(policy) && (steps_done(state, policy) || exhausted(state, policy));
}

void on(Context& context, const StopRequested&) {
  State& state = context.state;
  if (state.stopping) return;
  state.stopping = true;
  state.stop_deadline = state.now + state.config.deadlines.save;
  // Before anything is saved: what is still sampled would not be waited for, and is sampled again
  // when the run goes on.
  abort_all(context);
}

void request_saves(Context& context) {
  const State& state = context.state;
  for (auto& [id, policy] : context.state.policies) {
    const int64_t version = policy.published;
    // Version 0 is saved before anybody hears of it.
    const bool due = (version > 0 && version % state.config.save.interval_steps == 0) ||
                     steps_done(state, policy) || state.end.has_value();
    if (!due || saved(policy) || policy.saving == version) continue;
    if (trainer_of(state, policy) == nullptr) continue;
    // Once a session: a new one forgets it (law 8.3), since what was said in the old one may be
    // lost.
    policy.saving = version;
    context.tell(policy.trainer, wire::Save{.policy = id, .version = version});
  }
}

void advance_end(Context& context) {
  State& state = context.state;
  if (state.ended) return;
  if (!state.end) {
    const auto reason = reason_to_end(state);
    if (!reason) return;
    state.end = RunEnd{.reason = *reason, .unreached = 0};
    state.end_deadline = state.now + state.config.deadlines.save;
    // The end itself makes the save due, and no further event may come to ask for it.
    request_saves(context);
  }
  if (!safe_or_hopeless(state)) return;
  // A stopped run keeps its groups as they are: it goes on with them.
  if (state.end->reason != RunEnd::Reason::kStopped) {
    for (auto& [id, policy] : state.policies) state.end->unreached += cut_off(context, policy);
  }
  state.ended = true;
  context.act(RunDone{*state.end});
}

}  // namespace tailrace::scheduler
