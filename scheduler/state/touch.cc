#include "scheduler/state/touch.h"

#include <algorithm>
#include <optional>

namespace tailrace::scheduler {
namespace {

// The time from which a name that is away is kept for the longest quarantine and then forgotten
// (law 7.5). State::away is ordered by it, so that forgetting looks at the oldest alone.
Time last_time(const Health& health) { return std::max(health.until, health.left); }

// It samples by weights of the present lineage, nobody is about to change them, and it is not to go
// back to older ones.
bool is_open(const State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  return policy != state.policies.end() && worker.version >= 0 &&
         !(worker.install && worker.install->phase == Install::Phase::kSwitching) &&
         on_lineage(policy->second, worker.version, worker.digest) &&
         worker.version <= wanted_version(state, policy->second, id, worker);
}

// Nothing needs the weights that it has: no evaluation of them, and where installs wait for what
// runs, or lead back to older weights, no lease.
bool may_switch(const State& state, const Policy& policy, const WorkerId& id,
                const Worker& worker) {
  const int64_t version = worker.install->version;
  const int64_t wanted = wanted_version(state, policy, id, worker);
  if (is_past(policy, worker, version)) return version == wanted && worker.leased == 0;
  if (version > wanted) return false;
  return state.config.mode.install != InstallWhen::kDrained || worker.leased == 0;
}

InstallStep step_of(const State& state, const WorkerId& id, const Health* health,
                    const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  if (worker.role != Role::kRollout || !worker.connected || in_quarantine(state, health) ||
      policy == state.policies.end())
    return InstallStep::kNone;
  const std::optional<int64_t> next =
      is_resting(state, worker) ? std::nullopt : next_version(state, policy->second, id, worker);
  if (!worker.install) return next ? InstallStep::kStage : InstallStep::kNone;
  const Install& install = *worker.install;
  // The weights of another lineage are not worth the wait.
  if (!on_lineage(policy->second, install.version, install.digest))
    return next ? InstallStep::kStage : InstallStep::kForget;
  // The earlier request is left to end first.
  if (install.phase != Install::Phase::kStaged) return InstallStep::kNone;
  // Also to one that is not the newest any more: versions may come faster than they are staged.
  if (may_switch(state, policy->second, id, worker)) return InstallStep::kSwitch;
  return next && *next != install.version ? InstallStep::kStage : InstallStep::kNone;
}

// It will hold the wanted weights in a moment.
bool is_installing(const State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  return worker.install && policy != state.policies.end() &&
         (worker.install->phase == Install::Phase::kSwitching ||
          may_switch(state, policy->second, id, worker));
}

Index::Entry entry_of(const State& state, const WorkerId& id, const Worker& worker) {
  Index::Entry entry;
  const Health* health = find_health(state, id);
  const bool rollout = worker.role == Role::kRollout;
  const bool moves = rollout && !worker.stalled;
  entry.samples = rollout;
  if (rollout) entry.pool = {worker.policy, worker.site.pool};
  entry.has_faults = has_faults(health);
  // Below 0 for a worker on trial that still holds what it was granted before: it may finish that,
  // and then has room for one (law 7.3).
  if (worker.connected) entry.room = usable_slots(state, health, worker) - worker.leased;
  entry.verifies = worker.role == Role::kReward;
  if (worker.connected && moves && is_open(state, id, worker)) entry.version = worker.version;
  // One that was silent would hold what it gets until its deadline, so it gets only what is left.
  entry.proving =
      entry.version && entry.room > 0 && on_trial(state, health) && health->fault != Fault::kSilent;
  // One that has failed, or stands still, is not waited for: it may hang.
  if (moves && worker.connected && !entry.has_faults)
    entry.load = {worker.slots, worker.leased, is_installing(state, id, worker) ? 1 : 0};
  entry.stuck = worker.stalled && worker.leased > 0;
  entry.step = step_of(state, id, health, worker);
  // A worker that is away has the deadline of its absence alone: a new session begins its install
  // anew (law 9.6), and without one it is lost.
  if (!worker.connected) {
    entry.deadline = worker.reconnect_deadline;
  } else if (is_asked(worker)) {
    entry.deadline = worker.install->deadline;
  }
  if (is_resting(state, worker)) entry.wake = worker.rest->until;
  if (in_quarantine(state, health))
    entry.wake = std::min(entry.wake.value_or(health->until), health->until);
  // Not plain is a worker of which more than room and load depends on the number of its leases: a
  // drained switch waits for the last one, a worker that stands still is stuck with one, and a
  // worker on trial has room for one.
  entry.plain = worker.connected && !worker.stalled && !worker.install &&
                (health == nullptr || health->quarantines == 0);
  return entry;
}

}  // namespace

void touch(State& state, const WorkerId& id) {
  const auto worker = state.workers.find(id);
  if (worker != state.workers.end()) touch(state, id, worker->second);
}

void touch(State& state, const WorkerId& id, Worker& worker) {
  // The index is told the difference to what it was told last, which the worker keeps: a caller
  // need not know which of its facts have changed.
  Index::Entry now = entry_of(state, id, worker);
  state.index.set(id, worker.indexed, now);
  worker.indexed = std::move(now);
}

void add_leases(State& state, const WorkerId& id, Worker& worker, int64_t count) {
  worker.leased += count;
  if (worker.indexed.plain) return state.index.add_leases(id, worker.indexed, count);
  touch(state, id, worker);
}

void erase_worker(State& state, const WorkerId& id) {
  const auto worker = state.workers.find(id);
  state.index.set(id, worker->second.indexed, {});
  state.workers.erase(worker);
  if (const Health* health = find_health(state, id)) state.away.insert({last_time(*health), id});
}

void leave_away(State& state, const WorkerId& id) {
  if (const Health* health = find_health(state, id)) state.away.erase({last_time(*health), id});
}

std::set<std::pair<Time, WorkerId>> find_away(const State& state) {
  std::set<std::pair<Time, WorkerId>> away;
  for (const auto& [id, health] : state.health) {
    if (!state.workers.contains(id)) away.insert({last_time(health), id});
  }
  return away;
}

void make_index(State& state) {
  state.index = {};
  for (auto& [id, worker] : state.workers) {
    worker.indexed = {};
    touch(state, id, worker);
  }
}

std::set<PoolId> find_held_out(const State& state) {
  std::set<PoolId> found;
  // Work of workers that stand still waits too, as long as it may be moved (law 8.6).
  for (const WorkerId& id : state.index.stuck()) {
    if (!state.leases.holds_held_out(id)) continue;
    for (const WorkId& work : state.leases.of(id)) {
      if (work.lane != Lane::kEval) break;  // these sort first
      const Task& task = *find_task(state, work.lane, work.member);
      const Member& member = task.members[static_cast<size_t>(work.member.member)];
      if (member.moves < state.config.retries.returned &&
          task.weight_floor < state.policies.at(work.member.policy).frontier)
        found.insert({work.member.policy, state.config.pool_of(work.lane, work.member.dataset)});
    }
  }
  for (const auto& [need, members] : state.waiting) {
    if (need.lane != Lane::kEval) break;  // these sort first
    const Policy& policy = state.policies.at(need.policy);
    if (need.floor < policy.frontier) found.insert({need.policy, need.pool});
  }
  return found;
}

bool follow_evaluations(State& state) {
  std::set<PoolId> held_out = find_held_out(state);
  if (held_out == state.held_out) return false;
  state.held_out = std::move(held_out);
  // wanted_version() asks for these pools, so any of their workers may have another step of an
  // install to make now. This happens a few times in an evaluation (law 14.5).
  make_index(state);
  return true;
}

void State::after_reading() {
  // find_held_out() asks the index which workers are stuck, so the index comes first; it is made
  // once more where held-out members wait.
  make_index(*this);
  follow_evaluations(*this);
  away = find_away(*this);
  for (auto& [id, policy] : policies) policy.told_items = count_told_items(policy);
}

bool index_is_right(const State& state) {
  Index index;
  for (const auto& [id, worker] : state.workers) {
    const Index::Entry entry = entry_of(state, id, worker);
    if (entry != worker.indexed) return false;
    index.set(id, {}, entry);
  }
  return index == state.index;
}

}  // namespace tailrace::scheduler
