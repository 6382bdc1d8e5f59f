#include "scheduler/decide/placement.h"

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/breaker.h"

namespace tailrace::scheduler {
namespace {

bool may_run(const Worker& worker, const WorkId& work, int64_t floor) {
  if (worker.role != WorkerRole::kRollout || !worker.connected ||
      worker.phase != WorkerPhase::kOpen || worker.policy != work.member.policy ||
      worker.leased >= worker.slots) {
    return false;
  }
  return work.lane == Lane::kEval ? worker.version == floor : worker.version >= floor;
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

// Most siblings, then most free slots, then the first name.
WorkerId pick_rollout(const State& state, const WorkId& work, const Task& task) {
  WorkerId best;
  int64_t best_siblings = -1, best_free = -1;
  for (const auto& [id, worker] : state.workers) {
    if (!may_run(worker, work, task.weight_floor)) continue;
    const int64_t siblings = siblings_at(state, work, task, id),
                  free = worker.slots - worker.leased;
    if (std::pair(siblings, free) > std::pair(best_siblings, best_free)) {
      best = id, best_siblings = siblings, best_free = free;
    }
  }
  return best;
}

WorkerId pick_reward(const State& state) {
  WorkerId best;
  int64_t best_free = 0;
  for (const auto& [id, worker] : state.workers) {
    if (worker.role != WorkerRole::kReward || !worker.connected ||
        worker.slots - worker.leased <= best_free)
      continue;
    best = id, best_free = worker.slots - worker.leased;
  }
  return best;
}

void lease_to(Context& context, const WorkId& work, Lease lease) {
  State& state = context.state;
  ++state.workers.at(lease.worker).leased;
  const auto it = state.leases.emplace(work, std::move(lease)).first;
  context.act(lease_action(state, work, it->second));
}

// Whether this is the moment to send the worker to its policy's newest version, if it is behind.
// A mode that lets work end on the weights that it began with waits here for `leased` to be 0.
bool may_install(const State& state, const Worker& worker) {
  if (worker.role != WorkerRole::kRollout || !worker.connected) return false;
  const auto policy = state.policies.find(worker.policy);
  return policy != state.policies.end() && at_frontier(policy->second);
}

// Holds the newest version, or is on its way to one: that install is left to end first.
bool up_to_date(const State& state, const Worker& worker) {
  const Policy& policy = state.policies.at(worker.policy);
  switch (worker.phase) {
    case WorkerPhase::kClosed:
      return false;
    case WorkerPhase::kInstalling:
      return worker.install_deadline > state.now &&
             on_lineage(policy, worker.target, worker.target_digest);
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
  context.act(Install{id, worker.policy, version, weights.digest, weights.manifest});
}

int64_t free_slots(const State& state, WorkerRole role) {
  int64_t free = 0;
  for (const auto& [id, worker] : state.workers) {
    if (worker.role == role && worker.connected &&
        (role == WorkerRole::kReward || worker.phase == WorkerPhase::kOpen)) {
      free += worker.slots - worker.leased;
    }
  }
  return free;
}

}  // namespace

void refresh_workers(Context& context) {
  for (auto& [id, worker] : context.state.workers) {
    if (!may_install(context.state, worker) || up_to_date(context.state, worker)) continue;
    const Policy& policy = context.state.policies.at(worker.policy);
    install(context, id, worker, policy.frontier, policy.lineage.at(policy.frontier));
  }
}

void on_installed(Context& context, const Installed& event) {
  const auto it = context.state.workers.find(event.worker);
  if (it == context.state.workers.end()) return;
  Worker& worker = it->second;
  // Another version or other bytes than asked for: still waiting; the deadline asks again.
  if (worker.phase != WorkerPhase::kInstalling || worker.target != event.version ||
      worker.target_digest != event.digest || worker.policy != event.policy) {
    return;
  }
  worker.phase = WorkerPhase::kOpen;
  worker.install_failures = 0;
  worker.version = event.version;
  worker.digest = event.digest;
}

void on_install_failed(Context& context, const InstallFailed& event) {
  constexpr Time kAgainAfter = std::chrono::seconds(1);
  constexpr int64_t kAtMost = 10;
  const auto it = context.state.workers.find(event.worker);
  if (it == context.state.workers.end()) return;
  Worker& worker = it->second;
  if (worker.phase != WorkerPhase::kInstalling || worker.target != event.version) return;
  worker.install_deadline = context.state.now + kAgainAfter;
  if (++worker.install_failures < kAtMost) return;
  halt(context, fmt::format("{} failed {} times to install version {}: {}", event.worker, kAtMost,
                            event.version, event.reason));
}

void grant_waiting(Context& context) {
  State& state = context.state;
  int64_t free = free_slots(state, WorkerRole::kRollout);
  for (auto it = state.waiting.begin(); it != state.waiting.end() && free > 0;) {
    const WorkId work = *it;
    const Task& task = *find_task(state, work.lane, work.member);
    const WorkerId worker = pick_rollout(state, work, task);
    if (worker.empty()) {
      ++it;
      continue;
    }
    it = state.waiting.erase(it);
    --free;
    Member& member = member_of(state, work);
    member.phase = Phase::kRunning;
    member.granted_version = state.workers.at(worker).version;
    ++member.attempt;
    lease_to(context, work,
             {.kind = LeaseKind::kGenerate,
              .worker = worker,
              .attempt = member.attempt,
              .verify_attempt = 0,
              .deadline = state.now + context.config().deadlines.lease});
  }
}

void verify_waiting(Context& context) {
  State& state = context.state;
  while (!state.to_verify.empty()) {
    const WorkerId worker = pick_reward(state);
    if (worker.empty()) return;
    const WorkId work = *state.to_verify.begin();
    state.to_verify.erase(state.to_verify.begin());
    Member& member = member_of(state, work);
    member.phase = Phase::kVerifying;
    ++member.verify_attempt;
    lease_to(context, work,
             {.kind = LeaseKind::kVerify,
              .worker = worker,
              .attempt = member.attempt,
              .verify_attempt = member.verify_attempt,
              .deadline = state.now + context.config().deadlines.verify});
  }
}

}  // namespace tailrace::scheduler
