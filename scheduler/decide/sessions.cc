#include "scheduler/decide/sessions.h"

#include <fmt/format.h>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/health.h"
#include "scheduler/decide/lineage.h"
#include "scheduler/decide/ranks.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// In its next session it proves its weights anew: it may have come by others since.
void close(Worker& worker) {
  worker.version = -1;
  worker.install.reset();
  worker.rest.reset();
}

// Leases and places stay for a while: a link that breaks costs no work.
void leave_absent(State& state, const WorkerId& id) {
  Worker& worker = state.workers.at(id);
  worker.connected = false;
  close(worker);
  worker.reconnect_deadline = state.now + state.config.deadlines.reconnect;
  touch(state, id);
}

// Its process is gone. With work in hand that is a fault; a worker that leaves with empty hands
// has done nothing wrong.
void lose_worker(Context& context, const WorkerId& id, Leaving how) {
  State& state = context.state;
  const Worker& worker = state.workers.at(id);
  const auto policy = state.policies.find(worker.policy);
  // Weights too are work: who dies of every install must not be asked for ever.
  bool had_work = is_asked(worker);
  had_work = end_leases(context, id, how) > 0 || had_work;
  if (worker.role == Role::kTrainer && policy != state.policies.end() &&
      policy->second.trainer == id) {
    had_work = had_work || policy->second.handed || policy->second.told > 0;
    on_trainer_lost(policy->second);
  }
  if (is_rank(worker)) {
    had_work = had_work || (policy != state.policies.end() && policy->second.handed);
    leave_rank(state, id, worker);
  }
  // Law 6.1: a person who added a worker may take it away again, whatever it does just then.
  const bool takes_leave = worker.joined && how == Leaving::kGoodbye;
  if (had_work && !takes_leave)
    record_fault(context, id, Fault::kLost, "it went away with work in hand");
  record_leaving(context, id);
  const bool was_trainer = worker.role == Role::kTrainer;
  const PolicyId policy_id = worker.policy;
  erase_worker(state, id);
  if (was_trainer) hear_next_trainer(context, policy_id);
}

// Under one name: a process is one thing all its life.
bool same_process(const Worker& worker, const WorkerUp& event) {
  return worker.incarnation == event.incarnation && worker.role == event.role &&
         worker.policy == event.policy && worker.rank == event.rank;
}

}  // namespace

void on(Context& context, const WorkerUp& event) {
  State& state = context.state;
  const auto known = state.workers.find(event.worker);
  // Another process under this name: the one before it is gone, although nobody said so.
  if (known != state.workers.end() && !same_process(known->second, event))
    lose_worker(context, event.worker, Leaving::kLost);
  leave_away(state, event.worker);
  Worker& worker = state.workers[event.worker];
  worker.role = event.role;
  worker.policy = event.policy;
  worker.incarnation = event.incarnation;
  worker.session = event.session;
  worker.connected = true;
  worker.stalled = false;
  worker.slots = event.slots;
  worker.joined = event.joined;
  worker.site = event.site;
  worker.rank = event.rank;
  close(worker);
  worker.greeting.reset();
  worker.question.reset();
  touch(state, event.worker);
  if (worker.role == Role::kTrainer) {
    const auto policy = state.policies.find(event.policy);
    if (policy != state.policies.end() && policy->second.trainer == event.worker)
      on_trainer_lost(policy->second);  // it asks again, and is answered again
    if (is_rank(worker)) join_rank(state, event.worker, worker);
  } else {
    // Also when there are none: the worker may hold work that was given up since.
    tell_leases(context, event.worker);
  }
}

void on(Context& context, const WorkerDown& event) {
  const auto it = context.state.workers.find(event.worker);
  // The end of an older session: a newer one has taken its place (law 8.1).
  if (it == context.state.workers.end() || it->second.session != event.session) return;
  // A trainer holds no lease: its batch is handed over again in its next session.
  if (event.silent && it->second.role != Role::kTrainer)
    return leave_absent(context.state, event.worker);
  lose_worker(context, event.worker, Leaving::kGoodbye);
}

void on(Context& context, const WorkerFailed& event) {
  State& state = context.state;
  const auto it = state.workers.find(event.worker);
  if (it == state.workers.end()) return;
  Worker& worker = it->second;
  // Law 7.1: before anything worked, it is most likely the start that is wrong. Not of one that a
  // person added: the start is another's.
  if (!state.begun && !worker.joined)
    return halt(context, fmt::format("{}: {}", event.worker, event.reason));
  end_leases(context, event.worker, Leaving::kLost);
  close(worker);
  touch(state, event.worker);
  const auto policy = state.policies.find(worker.policy);
  if (worker.role == Role::kTrainer && policy != state.policies.end() &&
      policy->second.trainer == event.worker) {
    on_trainer_lost(policy->second);
  }
  // At once, without counting: it said so itself. Said again, or by its next process, while it is
  // given up, it is the same trouble (law 7.2).
  if (!in_quarantine(state, event.worker))
    quarantine(context, event.worker, Fault::kFailed, event.reason);
}

void on(Context& context, const Restarted& event) {
  State& state = context.state;
  // The cursors are one a dataset; with others they would mean nothing.
  if (event.config && event.config->datasets.size() == state.config.datasets.size()) {
    state.config = *event.config;
    sort_waiting(state);
  }
  // A person has looked: everybody gets another chance.
  state.halted.clear();
  state.health.clear();
  state.away.clear();
  state.breakers.clear();
  forget_rests(state);
  state.stopping = false;
  for (auto& [id, worker] : state.workers) {
    worker.stalled = false;
    leave_absent(state, id);
  }
  for (auto& [id, policy] : state.policies) {
    on_trainer_lost(policy);
    policy.ranks.clear();
    policy.greeted = false;
    // Complete, and perhaps written down, perhaps not: the report is idempotent.
    if (policy.evaluation && !evaluating(policy))
      context.act(evaluation_report(id, *policy.evaluation));
  }
  // The new rules may allow more; if not, the end comes again in this very event.
  reopen(context);
}

void expire_absences(Context& context) {
  State& state = context.state;
  // Collected first: lose_worker() erases.
  std::vector<WorkerId> absent;
  for (const auto& [deadline, id] : state.index.deadlines()) {
    if (deadline > state.now) break;
    if (!state.workers.at(id).connected) absent.push_back(id);
  }
  for (const WorkerId& id : absent) lose_worker(context, id, Leaving::kLost);
}

}  // namespace tailrace::scheduler
