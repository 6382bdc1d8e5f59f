#include "scheduler/state/expects.h"

#include <algorithm>
#include <optional>

namespace tailrace::scheduler {

bool expects_result(const State& state, const WorkerId& worker, Lane lane, const LeaseId& lease) {
  const Lease* held = state.leases.find({lane, lease.member});
  return held != nullptr && expects_result(*held, worker, lease) && state.workers.contains(worker);
}

bool expects_result(const Lease& held, const WorkerId& worker, const LeaseId& lease) {
  if (held.kind != LeaseKind::kGenerate) return false;
  if (held.attempt == lease.attempt) return held.worker == worker;
  // Law 6.4: the attempt that was taken from a worker that stood still may bring its sample after
  // all.
  return held.before == Lease::Before{worker, lease.attempt};
}

bool expects_verdict(const State& state, const Reward& reward) {
  const Lease* held = state.leases.find({reward.lane, reward.lease.member});
  return held != nullptr && held->kind == LeaseKind::kVerify &&
         held->attempt == reward.lease.attempt && held->worker == reward.worker &&
         held->verify_attempt == reward.verify_attempt;
}

namespace {

// Another version or other bytes than asked for: still waiting; the deadline will end that.
template <class Answer>
bool answers(const State& state, const Answer& event, Install::Phase phase) {
  const auto it = state.workers.find(event.worker);
  if (it == state.workers.end() || it->second.policy != event.policy) return false;
  const std::optional<Install>& install = it->second.install;
  return install && install->phase == phase && install->version == event.version &&
         install->digest == event.digest;
}

}  // namespace

bool expects(const State& state, const Staged& event) {
  return answers(state, event, Install::Phase::kStaging);
}

bool expects(const State& state, const StageProgress& event) {
  return answers(state, event, Install::Phase::kStaging) &&
         event.bytes > state.workers.at(event.worker).install->bytes;
}

bool expects(const State& state, const Installed& event) {
  return answers(state, event, Install::Phase::kSwitching);
}

bool expects(const State& state, const InstallFailed& event) {
  const auto it = state.workers.find(event.worker);
  // False for an install that has ended, or was replaced. A copy of a report whose version is being
  // installed again cannot be told from a new one (law 14.4).
  return it != state.workers.end() && is_asked(it->second) &&
         it->second.install->version == event.version && it->second.install->digest == event.digest;
}

bool expects(const State& state, const RolledBack& event) {
  const auto it = state.policies.find(event.policy);
  const auto worker = state.workers.find(event.worker);
  if (it == state.policies.end() || worker == state.workers.end()) return false;
  const Policy& policy = it->second;
  if (worker->second.rank != 0) return false;
  // One that waits for its turn.
  if (policy.trainer != event.worker && trainer_of(state, policy) != nullptr)
    return !worker->second.greeting;
  // Another process may hold any version: it went on from the checkpoint that it found.
  if (policy.trainer != event.worker || policy.trainer_incarnation != worker->second.incarnation)
    return true;
  // A process never loses versions.
  if (event.version < policy.published) return false;
  if (!policy.greeted || event.version > policy.published) return true;
  // The process has said this version before. It is news only if its weights are others, which is a
  // fork (law 9.4).
  return event.version >= 0 && !(is_master(policy, event.version, event.master) &&
                                 on_lineage(policy, event.version, event.digest));
}

bool expects(const State& state, const Published& event) {
  const Policy* policy = policy_of_trainer(state, event.policy, event.worker);
  if (policy == nullptr || event.version < 0) return false;
  // The first one may have any number: the trainer may begin from a checkpoint.
  if (policy->published < 0) return true;
  return comes_next(*policy, event.version);
}

bool expects(const State& state, const TrainingStage& event) {
  const Policy* policy = policy_of_trainer(state, event.policy, event.worker);
  return policy != nullptr && policy->published < 0 &&
         policy->stage != RowStage{event.number, event.of, event.name};
}

bool expects(const State& state, const Durable& event) {
  const Policy* policy = policy_of_trainer(state, event.policy, event.worker);
  return policy != nullptr && event.version > policy->durable && event.version <= policy->published;
}

bool expects(const State& state, const TrainerWants& event) {
  // Law 14.4: a step that this session has asked for already is not asked for again.
  if (const Policy* policy = policy_of_trainer(state, event.policy, event.worker))
    return event.step == policy->published + 1 && policy->wanted != event.step;
  // One that waits for its turn asks once; it is answered when the turn comes.
  const auto worker = state.workers.find(event.worker);
  return worker != state.workers.end() && worker->second.greeting && !worker->second.question;
}

bool expects(const State& state, const WorkerFailed& event) {
  const auto worker = state.workers.find(event.worker);
  if (worker == state.workers.end()) return false;
  // Before the run has begun this halts it (law 7.1). Later, a fault during a quarantine is not
  // counted again (law 7.2), so the word changes something only while it holds leases.
  return !state.begun || !in_quarantine(state, event.worker) || worker->second.leased > 0;
}

bool expects(const State& state, const Stalled& event) {
  const auto it = state.workers.find(event.worker);
  return it != state.workers.end() && it->second.role == Role::kRollout &&
         it->second.session == event.session && it->second.stalled != event.stalled;
}

bool expects(const State& state, const TurnsStored& event) {
  const Lease* lease = state.leases.find({event.lane, event.lease.member});
  if (lease == nullptr || !state.workers.contains(event.worker)) return false;
  if (lease->kind != LeaseKind::kGenerate || lease->worker != event.worker ||
      lease->attempt != event.lease.attempt)
    return false;
  const Task& task = *find_task(state, event.lane, event.lease.member);
  const auto& prefix = task.members[static_cast<size_t>(event.lease.member.member)].prefix;
  // Each renews the lease: more turns are more tokens. Fewer than it began with are of another life
  // of this lease, which a loss of power has undone.
  return event.turns <= event.tokens && event.tokens > (prefix ? prefix->tokens : 0) &&
         event.turns > std::max(lease->turns, prefix ? prefix->turns : 0);
}

}  // namespace tailrace::scheduler
