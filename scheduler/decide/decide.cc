#include "scheduler/decide/decide.h"

#include <algorithm>
#include <set>
#include <utility>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/breaker.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/lineage.h"
#include "scheduler/decide/placement.h"
#include "scheduler/decide/rounds.h"

namespace tailrace::scheduler {
namespace {

void forget_worker(Context& context, const WorkerId& id, bool lost) {
  const auto it = context.state.workers.find(id);
  if (it == context.state.workers.end()) return;
  const auto policy = context.state.policies.find(it->second.policy);
  if (it->second.role == WorkerRole::kTrainer && policy != context.state.policies.end()) {
    // A trainer that only lost its connection may have lost the batch with it: it is given again.
    policy->second.handed = false;
    if (lost) on_trainer_lost(policy->second);
  }
  void_worker_leases(context, id, lost);
  context.state.workers.erase(it);
}

void apply(Context& context, const WorkerUp& event) {
  const auto known = context.state.workers.find(event.worker);
  if (known != context.state.workers.end()) {
    forget_worker(context, event.worker, known->second.incarnation != event.incarnation);
  }
  Worker worker;
  worker.role = event.role;
  worker.policy = event.policy;
  worker.incarnation = event.incarnation;
  worker.slots = event.slots;
  context.state.workers[event.worker] = std::move(worker);
}

void apply(Context& context, const WorkerDown& event) {
  forget_worker(context, event.worker, true);
}

void apply(Context& context, const Tick&) { expire_leases(context); }

void apply(Context& context, const AttemptResult& event) { on_result(context, event); }
void apply(Context& context, const Reward& event) { on_reward(context, event); }
void apply(Context& context, const Installed& event) { on_installed(context, event); }
void apply(Context& context, const InstallFailed& event) { on_install_failed(context, event); }
void apply(Context& context, const BodiesLost& event) { on_bodies_lost(context, event); }
void apply(Context& context, const Published& event) { on_published(context, event); }
void apply(Context& context, const Durable& event) { on_durable(context, event); }
void apply(Context& context, const RolledBack& event) { on_rolled_back(context, event); }

void apply(Context& context, const TrainerWants& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it == context.state.policies.end() || event.step != it->second.published + 1) return;
  it->second.wanted = event.step;
  it->second.handed = false;  // asked again: answered again, with the same list
}

void apply(Context& context, const TrainerLost& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it != context.state.policies.end()) on_trainer_lost(it->second);
}

// Everything outstanding, once more: whoever still has it ignores it.
void apply(Context& context, const Restarted& event) {
  State& state = context.state;
  if (event.config && event.config->domains.size() == state.config.domains.size())
    state.config = *event.config;
  state.stopping = false;
  state.halted.clear();
  state.breaker = {};
  state.end.reset();
  if (!event.connections_kept) {
    for (auto& [id, worker] : state.workers) {
      void_worker_leases(context, id, /*lost=*/false);
      worker.connected = false;
    }
  }
  for (const auto& [work, lease] : state.leases) context.act(lease_action(state, work, lease));
  for (auto& [id, worker] : state.workers) {
    if (worker.phase != WorkerPhase::kInstalling) continue;
    worker.phase = WorkerPhase::kClosed;  // refresh_workers asks again
    worker.target = -1;
  }
  for (auto& [id, policy] : state.policies) {
    policy.handed = false;
    if (policy.evaluation && !evaluating(policy))
      context.act(evaluation_report(id, *policy.evaluation));
  }
}

void apply(Context& context, const StopRequested&) {
  context.state.stopping = true;
  abort_all(context);
}

bool steps_done(const State& state, const Policy& policy) {
  return state.config.steps > 0 && policy.published >= state.config.steps;
}

bool finished(const State& state, const Policy& policy) {
  return at_frontier(policy) && (steps_done(state, policy) || exhausted(state, policy));
}

void end_run(Context& context, RunEnd::Reason reason, int64_t unreached) {
  context.state.end = RunEnd{reason, unreached};
  context.act(RunDone{*context.state.end});
}

void maybe_end(Context& context) {
  State& state = context.state;
  if (state.end) return;
  if (state.stopping) {
    for (const auto& [id, policy] : state.policies) {
      if (policy.handed) return;  // its step is nearly done; it would be lost
    }
    return end_run(context, RunEnd::Reason::kStopped, 0);
  }
  bool by_steps = true;
  for (auto& [id, policy] : state.policies) {
    if (!finished(state, policy) || evaluating(policy)) return;
    by_steps = by_steps && steps_done(state, policy);
  }
  int64_t unreached = 0;
  for (auto& [id, policy] : state.policies) unreached += cut_off(context, policy);
  end_run(context, by_steps ? RunEnd::Reason::kSteps : RunEnd::Reason::kDataEnd, unreached);
}

// What becomes of the groups whose members settled in this event. Several members settle their
// group once, and a change of lineage may have taken the group apart in the meantime.
void settle(Context& context) {
  std::set<TaskId> groups;
  std::set<PolicyId> evaluations;
  for (const WorkId& work : std::exchange(context.settled, {})) {
    const Task* task = find_task(context.state, work.lane, work.member);
    if (task == nullptr || task->place != Place::kRunning) continue;
    if (work.lane == Lane::kEval) {
      evaluations.insert(work.member.policy);
    } else {
      groups.insert(task_of(work.member));
    }
  }
  for (const TaskId& id : groups) settle_task(context, context.state.policies.at(id.policy), id);
  for (const PolicyId id : evaluations)
    settle_evaluation(context, id, context.state.policies.at(id));
}

// What any event may have made possible.
void proceed(Context& context) {
  State& state = context.state;
  settle(context);
  if (!state.halted.empty()) return;
  for (auto& [id, policy] : state.policies) {
    if (state.stopping || state.end) break;
    open_rounds(context, id, policy);
    open_evaluation(context, id, policy, finished(state, policy));
    hand_over(context, id, policy);
  }
  maybe_end(context);
  if (state.stopping || state.end) return;
  refresh_workers(context);
  grant_waiting(context);
  verify_waiting(context);
}

}  // namespace

Actions decide(State& state, const Event& event, Time now) {
  state.now = std::max(state.now, now);
  Context context{.state = state, .actions = {}, .settled = {}};
  std::visit([&](const auto& e) { apply(context, e); }, event);
  proceed(context);
  return std::move(context.actions);
}

}  // namespace tailrace::scheduler
