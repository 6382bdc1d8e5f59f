#include "scheduler/decide/placement.h"

#include <algorithm>

#include <fmt/format.h>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/health.h"

namespace tailrace::scheduler {
namespace {

// Leases that it can take now, whatever weights it holds.
int64_t room_of(const State& state, const WorkerId& id, const Worker& worker) {
  if (!worker.connected) return 0;
  // A worker in quarantine, or on trial, may still hold more than it may take now.
  return std::max<int64_t>(0, usable_slots(state, id, worker) - worker.leased);
}

bool is_open(const Worker& worker) {
  return worker.role == Role::kReward ||
         (worker.role == Role::kRollout && worker.phase == WorkerPhase::kOpen);
}

bool holds_weights_for(const Worker& worker, const WorkId& work, int64_t floor) {
  if (worker.role != Role::kRollout || !is_open(worker) || worker.policy != work.member.policy)
    return false;
  return work.lane == Lane::kEval ? worker.version == floor : worker.version >= floor;
}

// Law 6.5: it failed there, nothing speaks for that worker since, and there is somebody else to
// try. Without this the worker that has just failed would have most room for the retry.
bool is_avoided(const State& state, const Member& member, const WorkerId& id,
                const Worker& worker) {
  if (member.failed_at != id) return false;
  // None after a good answer, and none on trial after a quarantine: it must prove itself somehow.
  const auto health = state.health.find(id);
  if (health == state.health.end() || health->second.faults == 0) return false;
  return std::ranges::any_of(state.workers, [&](const auto& entry) {
    const auto& [other_id, other] = entry;
    return other_id != id && other.role == worker.role && other.policy == worker.policy &&
           other.connected && is_open(other) && !in_quarantine(state, other_id);
  });
}

int64_t siblings_at(const State& state, const WorkId& work, const Task& task,
                    const WorkerId& worker) {
  int64_t count = 0;
  WorkId sibling = work;
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    sibling.member.member = i;
    const auto lease = state.leases.find(sibling);
    count += lease != state.leases.end() && lease->second.worker == worker;
  }
  return count;
}

// Most siblings, then most room, then the first name.
WorkerId pick_rollout(const State& state, const WorkId& work, const Task& task) {
  const Member& member = task.members[static_cast<size_t>(work.member.member)];
  WorkerId best;
  int64_t best_siblings = -1, best_room = -1;
  for (const auto& [id, worker] : state.workers) {
    if (!holds_weights_for(worker, work, task.weight_floor)) continue;
    const int64_t room = room_of(state, id, worker);
    if (room == 0 || is_avoided(state, member, id, worker)) continue;
    const int64_t siblings = siblings_at(state, work, task, id);
    // Strictly more, in the order of names: equal workers are told apart the same way in every
    // replay.
    if (std::pair(siblings, room) > std::pair(best_siblings, best_room)) {
      best = id, best_siblings = siblings, best_room = room;
    }
  }
  return best;
}

WorkerId pick_reward(const State& state, const Member& member) {
  WorkerId best;
  int64_t best_room = 0;
  for (const auto& [id, worker] : state.workers) {
    // A verifier holds no weights and serves every policy.
    if (worker.role != Role::kReward) continue;
    const int64_t room = room_of(state, id, worker);
    if (room > best_room && !is_avoided(state, member, id, worker)) best = id, best_room = room;
  }
  return best;
}

// An upper bound, whatever versions are asked for: when nobody has room, the waiting list, which
// may be long, is not walked at every event.
int64_t total_room(const State& state, Role role) {
  int64_t room = 0;
  for (const auto& [id, worker] : state.workers) {
    if (worker.role == role && is_open(worker)) room += room_of(state, id, worker);
  }
  return room;
}

// Whether this is the moment to send the worker to its policy's newest version, if it is behind.
// A mode that lets work end on the weights that it began with waits here for `leased` to be 0.
bool may_install(const State& state, const WorkerId& id, const Worker& worker) {
  if (worker.role != Role::kRollout || !worker.connected || in_quarantine(state, id)) return false;
  const auto policy = state.policies.find(worker.policy);
  return policy != state.policies.end() && at_frontier(policy->second);
}

// Holds the newest version, or is on its way to one: that install is left to end first.
bool up_to_date(const State& state, const Worker& worker) {
  const Policy& policy = state.policies.at(worker.policy);
  switch (worker.phase) {
    case WorkerPhase::kClosed:
      return false;
    // The weights of another lineage are not worth the wait: the new install replaces this one.
    case WorkerPhase::kInstalling:
      return on_lineage(policy, worker.target, worker.target_digest);
    case WorkerPhase::kOpen:
      return worker.version == policy.frontier && on_lineage(policy, worker.version, worker.digest);
  }
  return false;
}

void install(Context& context, const WorkerId& id, Worker& worker, int64_t version,
             const Weights& weights) {
  worker.phase = WorkerPhase::kInstalling;
  worker.target = version;
  worker.target_digest = weights.digest;
  worker.install_deadline = context.state.now + context.config().deadlines.install;
  context.tell(id, Install{.worker = {},
                           .session = 0,
                           .policy = worker.policy,
                           .version = version,
                           .digest = weights.digest,
                           .manifest = weights.manifest});
}

// It is asked again by refresh_workers(), after its quarantine if that was one fault too many.
void fail_install(Context& context, const WorkerId& id, Worker& worker, const std::string& reason) {
  worker.phase = WorkerPhase::kClosed;
  record_fault(context, id, Fault::kInstall, fmt::format("version {}: {}", worker.target, reason));
}

}  // namespace

void refresh_workers(Context& context) {
  for (auto& [id, worker] : context.state.workers) {
    if (!may_install(context.state, id, worker) || up_to_date(context.state, worker)) continue;
    const Policy& policy = context.state.policies.at(worker.policy);
    install(context, id, worker, policy.frontier, policy.lineage.at(policy.frontier));
  }
}

void on_installed(Context& context, const Installed& event) {
  const auto it = context.state.workers.find(event.worker);
  if (it == context.state.workers.end()) return;
  Worker& worker = it->second;
  // Another version or other bytes than asked for: still waiting; the deadline will end that.
  if (worker.phase != WorkerPhase::kInstalling || worker.target != event.version ||
      worker.target_digest != event.digest || worker.policy != event.policy) {
    return;
  }
  worker.phase = WorkerPhase::kOpen;
  worker.version = event.version;
  worker.digest = event.digest;
  // From now on no single worker ends the run (law 7.1).
  context.state.begun = true;
}

void on_install_failed(Context& context, const InstallFailed& event) {
  const auto it = context.state.workers.find(event.worker);
  if (it == context.state.workers.end()) return;
  Worker& worker = it->second;
  // Of an install that has ended, or was replaced. A copy of a report whose version is being
  // installed again cannot be told from a new one (law 14.4).
  if (worker.phase != WorkerPhase::kInstalling || worker.target != event.version) return;
  fail_install(context, event.worker, worker, event.reason);
}

void expire_installs(Context& context) {
  for (auto& [id, worker] : context.state.workers) {
    // Who is away has another deadline, that of its absence.
    if (worker.connected && worker.phase == WorkerPhase::kInstalling &&
        worker.install_deadline <= context.state.now) {
      fail_install(context, id, worker, "no answer within the deadline");
    }
  }
}

void grant_waiting(Context& context) {
  State& state = context.state;
  int64_t room = total_room(state, Role::kRollout);
  for (auto it = state.waiting.begin(); it != state.waiting.end() && room > 0;) {
    const WorkId work = *it;
    const Task& task = *find_task(state, work.lane, work.member);
    const WorkerId worker = pick_rollout(state, work, task);
    // Others behind it may need an older version, or another policy.
    if (worker.empty()) {
      ++it;
      continue;
    }
    it = state.waiting.erase(it);
    --room;
    Member& member = member_of(state, work);
    member.phase = Phase::kRunning;
    member.granted_version = state.workers.at(worker).version;
    ++member.attempt;
    begin_lease(context, work,
                {.kind = LeaseKind::kGenerate,
                 .worker = worker,
                 .attempt = member.attempt,
                 .verify_attempt = 0,
                 .deadline = state.now + context.config().deadlines.lease});
  }
}

void verify_waiting(Context& context) {
  State& state = context.state;
  int64_t room = total_room(state, Role::kReward);
  for (auto it = state.to_verify.begin(); it != state.to_verify.end() && room > 0;) {
    const WorkId work = *it;
    Member& member = member_of(state, work);
    const WorkerId worker = pick_reward(state, member);
    // It waits for another verifier than the one that has room; those behind it need not.
    if (worker.empty()) {
      ++it;
      continue;
    }
    it = state.to_verify.erase(it);
    --room;
    member.phase = Phase::kVerifying;
    ++member.verify_attempt;
    begin_lease(context, work,
                {.kind = LeaseKind::kVerify,
                 .worker = worker,
                 .attempt = member.attempt,
                 .verify_attempt = member.verify_attempt,
                 .deadline = state.now + context.config().deadlines.verify});
  }
}

}  // namespace tailrace::scheduler
