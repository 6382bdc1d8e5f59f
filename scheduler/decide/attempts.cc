#include "scheduler/decide/attempts.h"

#include <cmath>

#include "scheduler/decide/breaker.h"

namespace tailrace::scheduler {
namespace {

void end_lease(State& state, const WorkId& work) {
  const auto lease = state.leases.find(work);
  const auto worker = state.workers.find(lease->second.worker);
  if (worker != state.workers.end()) --worker->second.leased;
  state.leases.erase(lease);
}

// The worker need not go on, and its answer will mean nothing.
void abort_lease(Context& context, const WorkId& work) {
  const Lease& lease = context.state.leases.at(work);
  context.act(Abort{lease.worker, {work.member, lease.attempt}, work.lane});
  end_lease(context.state, work);
}

// What was leased is to be done again. A verification keeps the tokens: they are good.
void queue_again(State& state, const WorkId& work, LeaseKind kind) {
  const bool verifying = kind == LeaseKind::kVerify;
  member_of(state, work).phase = verifying ? Phase::kToVerify : Phase::kWaiting;
  (verifying ? state.to_verify : state.waiting).insert(work);
}

// An attempt, or the verification of one, has failed: once more, or never again.
void fail(Context& context, const WorkId& work, LeaseKind kind, Outcome cause) {
  State& state = context.state;
  Member& member = member_of(state, work);
  const RetryBounds& bounds = context.config().retries;
  member.outcome = cause;
  bool again = false;
  if (cause == Outcome::kVerifierFailed) {
    again = ++member.verifier_failures <= bounds.verifier_failed;
  } else if (cause == Outcome::kEnvFailed) {
    again = ++member.env_failures <= bounds.env_failed;
  } else {
    again = ++member.losses <= bounds.lost;
  }
  if (again) {
    queue_again(state, work, kind);
  } else {
    member.phase = Phase::kFailed;
    context.settled.push_back(work);
  }
}

void give_reward(Context& context, const WorkId& work, Member& member, double reward) {
  member.reward = reward;
  member.phase = Phase::kRewarded;
  context.settled.push_back(work);
}

// What keeps a result that says "finished" from being one; empty: nothing.
std::string fault_of(const State& state, const Task& task, const AttemptResult& result) {
  if (result.reward && !std::isfinite(*result.reward)) return "its reward is not finite";
  if (!result.reward && !result.needs_verifier) return "it has neither reward nor verifier";
  if (result.tokens == 0) return "";
  const Policy& policy = state.policies.at(result.lease.member.policy);
  const int64_t newest = result.lane == Lane::kEval ? task.weight_floor : policy.frontier;
  if (result.min_version < task.weight_floor || result.max_version > newest ||
      result.min_version > result.max_version) {
    return fmt::format("its tokens are of versions {}..{}, wanted {}..{}", result.min_version,
                       result.max_version, task.weight_floor, newest);
  }
  return "";
}

}  // namespace

void on_result(Context& context, const AttemptResult& result) {
  State& state = context.state;
  if (!expects_result(state, result.worker, result.lane, result.lease)) return;
  const WorkId work{result.lane, result.lease.member};
  end_lease(state, work);
  const Task& task = *find_task(state, work.lane, work.member);
  Member& member = member_of(state, work);
  if (result.outcome != Outcome::kFinished && result.outcome != Outcome::kTruncated) {
    // A worker that gives up on its own (stale, aborted) has lost the attempt as far as we can
    // tell.
    const Outcome cause =
        result.outcome == Outcome::kEnvFailed ? Outcome::kEnvFailed : Outcome::kLost;
    record_outcome(context, cause, result.reason);
    return fail(context, work, LeaseKind::kGenerate, cause);
  }
  if (const std::string fault = fault_of(state, task, result); !fault.empty()) {
    record_outcome(context, Outcome::kEnvFailed, fault);
    context.act(Release{{{work.lane, result.lease}}});
    return fail(context, work, LeaseKind::kGenerate, Outcome::kEnvFailed);
  }
  record_outcome(context, result.outcome, "");
  member.outcome = result.outcome;
  member.tokens = result.tokens;
  member.min_version = result.tokens > 0 ? result.min_version : member.granted_version;
  member.max_version = result.tokens > 0 ? result.max_version : member.granted_version;
  member.arrival = ++state.policies.at(work.member.policy).arrivals;
  member.has_body = true;
  if (result.reward) return give_reward(context, work, member, *result.reward);
  member.phase = Phase::kToVerify;
  state.to_verify.insert(work);
}

void on_reward(Context& context, const Reward& reward) {
  State& state = context.state;
  const WorkId work{reward.lane, reward.lease.member};
  const auto lease = state.leases.find(work);
  if (lease == state.leases.end() || lease->second.kind != LeaseKind::kVerify ||
      lease->second.attempt != reward.lease.attempt || lease->second.worker != reward.worker ||
      lease->second.verify_attempt != reward.verify_attempt) {
    return;
  }
  end_lease(state, work);
  if (reward.reward && std::isfinite(*reward.reward)) {
    record_outcome(context, Outcome::kFinished, "");
    give_reward(context, work, member_of(state, work), *reward.reward);
  } else {
    record_outcome(context, Outcome::kVerifierFailed, reward.reason);
    fail(context, work, LeaseKind::kVerify, Outcome::kVerifierFailed);
  }
}

void void_worker_leases(Context& context, const WorkerId& worker, bool lost) {
  State& state = context.state;
  std::vector<std::pair<WorkId, LeaseKind>> leases;
  for (const auto& [work, lease] : state.leases) {
    if (lease.worker == worker) leases.emplace_back(work, lease.kind);
  }
  for (const auto& [work, kind] : leases) end_lease(state, work);
  if (lost && !leases.empty())
    record_outcome(context, Outcome::kLost, "worker " + worker + " is gone");
  for (const auto& [work, kind] : leases) {
    if (lost) {
      fail(context, work, kind, Outcome::kLost);
    } else {
      queue_again(state, work, kind);
    }
  }
}

void expire_leases(Context& context) {
  State& state = context.state;
  std::vector<std::pair<WorkId, Lease>> late;
  for (const auto& [work, lease] : state.leases) {
    if (lease.deadline <= state.now) late.emplace_back(work, lease);
  }
  for (const auto& [work, lease] : late) {
    abort_lease(context, work);
    const Outcome cause =
        lease.kind == LeaseKind::kVerify ? Outcome::kVerifierFailed : Outcome::kLost;
    record_outcome(context, cause, "no answer from " + lease.worker + " within the deadline");
    fail(context, work, lease.kind, cause);
  }
}

void abort_all(Context& context) {
  State& state = context.state;
  while (!state.leases.empty()) {
    const auto [work, lease] = *state.leases.begin();
    abort_lease(context, work);
    queue_again(state, work, lease.kind);
  }
}

void void_members(Context& context, Lane lane, const TaskId& id, const Task& task) {
  State& state = context.state;
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    const WorkId work{lane, member_id(id, task.launch, i)};
    state.waiting.erase(work);
    state.to_verify.erase(work);
    if (state.leases.contains(work)) abort_lease(context, work);
  }
}

void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task) {
  Release release{bodies_of(lane, id, task)};
  for (Member& member : task.members) member.has_body = false;
  if (!release.bodies.empty()) context.act(std::move(release));
}

Action lease_action(const State& state, const WorkId& work, const Lease& lease) {
  const LeaseId id{work.member, lease.attempt};
  if (lease.kind == LeaseKind::kVerify) {
    return Verify{lease.worker, id, work.lane, lease.verify_attempt, lease.deadline};
  }
  const Task& task = *find_task(state, work.lane, work.member);
  return Grant{lease.worker, id, work.lane, task.weight_floor, lease.deadline};
}

}  // namespace tailrace::scheduler
