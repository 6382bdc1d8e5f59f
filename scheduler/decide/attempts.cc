#include "scheduler/decide/attempts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "scheduler/decide/health.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// Lease, deadline and the worker's load end together, and nowhere else (law 15.3). Returns what
// has ended.
Lease end_lease(State& state, const WorkId& work) {
  Lease lease = state.leases.take(work);
  const auto worker = state.workers.find(lease.worker);
  if (worker != state.workers.end()) add_leases(state, lease.worker, worker->second, -1);
  return lease;
}

// The lease ends at once, whether the worker hears of it or not: what it may still say is fenced
// (law 6.4).
Lease abort_lease(Context& context, const WorkId& work) {
  Lease lease = end_lease(context.state, work);
  context.tell(lease.worker, wire::Abort{.lease = {work.member, lease.attempt}, .lane = work.lane});
  return lease;
}

// Nothing more is done for this member.
void void_work(Context& context, const WorkId& work) {
  drop_waiting(context.state, work);
  context.state.to_verify.erase(work);
  if (context.state.leases.contains(work)) abort_lease(context, work);
}

// Samples that are there, and that no step trains.
void discard(Context& context, Lane lane, PolicyId policy, Release release) {
  if (release.bodies.empty()) return;
  if (lane == Lane::kTrain) {
    context.state.policies.at(policy).attempts.discarded +=
        std::ranges::count(release.bodies, 0, &BodyId::turns);
  }
  context.act(std::move(release));
}

void tell_lease(Context& context, const Worker& worker, const WorkId& work, const Task& task,
                const Lease& lease) {
  const LeaseId id{work.member, lease.attempt};
  if (lease.kind == LeaseKind::kVerify) {
    context.tell(lease.worker, worker,
                 Verify{.worker = {},
                        .session = 0,
                        .lease = id,
                        .lane = work.lane,
                        .verify_attempt = lease.verify_attempt});
  } else {
    const auto& prefix = task.members[static_cast<size_t>(work.member.member)].prefix;
    // The floor, not the newest version: the worker may install another one before it starts.
    context.tell(lease.worker, worker,
                 Grant{.worker = {},
                       .session = 0,
                       .lease = id,
                       .lane = work.lane,
                       .version = task.weight_floor,
                       .prefix = prefix ? std::optional(prefix_of(work, *prefix)) : std::nullopt});
  }
}

// Work whose lease has ended is to be done again. A verification keeps the tokens: they are good.
void queue_again(State& state, const WorkId& work, LeaseKind kind) {
  const bool verifying = kind == LeaseKind::kVerify;
  member_of(state, work).phase = verifying ? Phase::kToVerify : Phase::kWaiting;
  if (verifying) {
    state.to_verify.insert(work);
  } else {
    add_waiting(state, work);
  }
}

void settle_member(Context& context, const WorkId& work, const Task& task) {
  // Most members do not complete their group, and nobody has to look at it.
  if (work.lane == Lane::kEval || complete(context.config(), task))
    context.settled.push_back({work});
}

// Once more if the count of this cause allows it, or never again. Each cause has its own: a member
// whose workers die has not used up its environments' chances.
void try_again(Context& context, const WorkId& work, LeaseKind kind, int32_t& count,
               int64_t bound) {
  if (++count <= bound) return queue_again(context.state, work, kind);
  Task& task = *find_task(context.state, work.lane, work.member);
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  drop_prefix(context, work, member);
  member.phase = Phase::kFailed;
  settle_member(context, work, task);
}

// Law 6.5. Longer each time: what is broken there may take a while to mend.
void keep_from(State& state, Member& member, const WorkerId& worker) {
  const QuarantineConfig& config = state.config.quarantine;
  const int64_t failures = member.env_failures + member.verifier_failures + member.losses;
  const Time until = state.now + doubled(config.first, failures, config.longest);
  member.rests[worker] = until;
  state.rest_ends.insert(until);
}

// An attempt, or the verification of one, has failed at this worker.
void fail(Context& context, const WorkId& work, const Lease& lease, Outcome cause) {
  State& state = context.state;
  Member& member = member_of(state, work);
  keep_from(state, member, lease.worker);
  const RetryBounds& bounds = context.config().retries;
  AttemptCounts unseen;  // evaluations are not part of a step
  AttemptCounts& counts =
      work.lane == Lane::kTrain ? state.policies.at(work.member.policy).attempts : unseen;
  if (cause == Outcome::kVerifierFailed) {
    ++counts.verifier_failed;
    try_again(context, work, lease.kind, member.verifier_failures, bounds.verifier_failed);
  } else if (cause == Outcome::kEnvFailed) {
    ++counts.env_failed;
    try_again(context, work, lease.kind, member.env_failures, bounds.env_failed);
  } else {
    ++counts.lost;
    // It got no further than where it began: what is there may be what it was lost of.
    if (lease.turns > 0 && member.prefix && member.prefix->turns == lease.turns)
      drop_prefix(context, work, member);
    try_again(context, work, lease.kind, member.losses, bounds.lost);
  }
}

void give_reward(Context& context, const WorkId& work, Task& task, double reward) {
  // Somebody could play and score it.
  if (work.lane == Lane::kTrain)
    context.state.policies.at(work.member.policy)
        .datasets[static_cast<size_t>(work.member.dataset)]
        .broken.in_a_row = 0;
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  member.reward = reward;
  member.phase = Phase::kRewarded;
  settle_member(context, work, task);
}

// The reason why a result that says "finished" is none; empty: it is one.
std::string fault_of(const AttemptResult& result) {
  if (result.reward && !std::isfinite(*result.reward)) return "its reward is not finite";
  if (!result.reward && !result.needs_verifier) return "it has neither reward nor verifier";
  return "";
}

// Sampled by weights that its launch may use and that the state knows of. A scheduler that lost
// power may have forgotten a version that workers had already: nobody's fault, sampled again.
// Sampled is an AttemptResult, or TurnsStored.
template <class Sampled>
bool fits_its_launch(const State& state, const Task& task, const Sampled& sampled) {
  if (sampled.tokens == 0) return true;
  const Policy& policy = state.policies.at(sampled.lease.member.policy);
  // By a worker that had been told to stop, and to install, by a scheduler that forgot it.
  if (state.config.mode.install == InstallWhen::kDrained &&
      sampled.min_version != sampled.max_version)
    return false;
  // Its weights were let go, and could not be shown to anybody (law 9.8).
  if (state.config.keep_sampled && sampled.min_version < policy.released) return false;
  const int64_t newest = sampled.lane == Lane::kEval ? task.weight_floor : policy.frontier;
  return sampled.min_version >= task.weight_floor && sampled.max_version <= newest &&
         sampled.min_version <= sampled.max_version;
}

// A sample of the attempt that this member was taken from, by weights that are no older than those
// of its present grant. One without tokens says nothing of weights.
bool crosses(const State& state, const Task& task, const Member& member,
             const AttemptResult& result) {
  return has_sample(result.outcome) && result.tokens > 0 && fault_of(result).empty() &&
         fits_its_launch(state, task, result) && result.min_version >= member.granted_version;
}

void take_sample(Context& context, const WorkId& work, Task& task, const AttemptResult& result) {
  State& state = context.state;
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  record_outcome(context, result.worker, work, result.outcome, "");
  // An answer without a sampled token still rests on weights: those of its grant.
  member.min_version = result.tokens > 0 ? result.min_version : member.granted_version;
  member.max_version = result.tokens > 0 ? result.max_version : member.granted_version;
  learn_length(state, work, task, result.tokens);
  if (work.lane == Lane::kTrain) ++state.policies.at(work.member.policy).attempts.samples;
  member.has_body = true;
  member.judged = result.judged;
  if (result.reward) return give_reward(context, work, task, *result.reward);
  member.phase = Phase::kToVerify;
  state.to_verify.insert(work);
}

}  // namespace

bool complete(const Config& config, const Task& task) {
  return std::ranges::count(task.members, Phase::kRewarded, &Member::phase) >= config.group_size ||
         std::ranges::all_of(task.members, settled);
}

void begin_lease(Context& context, const WorkId& work, const Task& task, Worker& worker,
                 Lease lease) {
  State& state = context.state;
  const Lease& begun = state.leases.add(work, std::move(lease));
  add_leases(state, begun.worker, worker, 1);
  tell_lease(context, worker, work, task, begun);
}

Lease take_back(Context& context, const WorkId& work) { return abort_lease(context, work); }

void drop_prefix(Context& context, const WorkId& work, Member& member) {
  if (!member.prefix) return;
  context.act(Release{{prefix_of(work, *member.prefix)}});
  member.prefix.reset();
}

void on(Context& context, const TurnsStored& event) {
  State& state = context.state;
  if (!expects(state, event)) return;
  const WorkId work{event.lane, event.lease.member};
  Task& task = *find_task(state, work.lane, work.member);
  // The result of such an attempt will be refused in the end; nothing goes on from its turns.
  if (event.tokens == 0 || !fits_its_launch(state, task, event)) return;
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  drop_prefix(context, work, member);
  member.prefix = Prefix{.attempt = event.lease.attempt,
                         .turns = event.turns,
                         .tokens = event.tokens,
                         .min_version = event.min_version,
                         .max_version = event.max_version};
  // A worker that gets on keeps its lease (law 8.6).
  state.leases.renew(work, state.now + context.config().deadlines.lease);
}

void on(Context& context, const AttemptResult& result) {
  State& state = context.state;
  const WorkId work{result.lane, result.lease.member};
  const Lease* held = state.leases.find(work);
  if (held == nullptr || !expects_result(*held, result.worker, result.lease)) return;
  // The other holder, whose attempt crosses its abort, must still be there.
  if (held->worker != result.worker && !state.workers.contains(result.worker)) return;
  Task& task = *find_task(state, work.lane, work.member);
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  if (result.lease.attempt != member.attempt) {
    // Law 6.4: it crosses its abort. Taken if it is what the attempt in its place would be, or
    // newer; as a failure it is nobody's any more.
    if (!crosses(state, task, member, result)) {
      if (has_sample(result.outcome)) context.act(Release{{{work.lane, result.lease}}});
      return;
    }
    abort_lease(context, work);
    drop_prefix(context, work, member);
    member.attempt = result.lease.attempt;
    return take_sample(context, work, task, result);
  }
  const Lease lease = end_lease(state, work);
  // A sample whose attempt an answer has ended begins anew, or is whole (law 6.8).
  drop_prefix(context, work, member);
  if (!has_sample(result.outcome)) {
    if (result.outcome == Outcome::kTaskBroken)
      return context.broken.push_back({work.lane, task_of(work.member), result.reason});
    if (result.outcome == Outcome::kEnvFailed) {
      record_outcome(context, result.worker, work, Outcome::kEnvFailed, result.reason);
      return fail(context, work, lease, Outcome::kEnvFailed);
    }
    // Lost, as far as we can tell, whatever it calls it: without a fault a worker that gives up at
    // once could do so for ever.
    record_fault(context, result.worker, Fault::kLost,
                 result.reason.empty() ? fmt::format("it gave up ({})", name_of(result.outcome))
                                       : result.reason,
                 work);
    return fail(context, work, lease, Outcome::kLost);
  }
  const std::string fault = fault_of(result);
  const bool fits = fits_its_launch(state, task, result);
  if (!fault.empty() || !fits) {
    // Its body came into the store before its metadata were judged here.
    context.act(Release{{{work.lane, result.lease}}});
    if (!fault.empty()) record_outcome(context, result.worker, work, Outcome::kEnvFailed, fault);
    return fail(context, work, lease, fault.empty() ? Outcome::kLost : Outcome::kEnvFailed);
  }
  take_sample(context, work, task, result);
}

void on(Context& context, const Reward& reward) {
  State& state = context.state;
  if (!expects_verdict(state, reward)) return;
  const WorkId work{reward.lane, reward.lease.member};
  const Lease lease = end_lease(state, work);
  if (reward.task_broken)
    return context.broken.push_back({work.lane, task_of(work.member), reward.reason});
  if (reward.reward && std::isfinite(*reward.reward)) {
    record_outcome(context, reward.worker, work, Outcome::kFinished, "");
    // The environment's measure stands where the verifier says nothing of it.
    if (reward.judged) member_of(state, work).judged = reward.judged;
    give_reward(context, work, *find_task(state, work.lane, work.member), *reward.reward);
  } else {
    record_outcome(context, reward.worker, work, Outcome::kVerifierFailed, reward.reason);
    fail(context, work, lease, Outcome::kVerifierFailed);
  }
}

int64_t end_leases(Context& context, const WorkerId& worker, Leaving how) {
  const std::vector<WorkId> held = context.state.leases.of(worker);
  for (const WorkId& work : held) {
    const Lease lease = end_lease(context.state, work);
    if (how == Leaving::kLost) {
      // A verification too: its verifier has not spoken, so it is not the verifier's failure.
      fail(context, work, lease, Outcome::kLost);
    } else {
      try_again(context, work, lease.kind, member_of(context.state, work).returns,
                context.config().retries.returned);
    }
  }
  return std::ssize(held);
}

void forget_rests(State& state) {
  const auto forget = [](HashedMap<TaskId, Task>& tasks) {
    for (auto& [id, task] : tasks) {
      for (Member& member : task.members) member.rests.clear();
    }
  };
  for (auto& [id, policy] : state.policies) {
    forget(policy.tasks);
    if (policy.evaluation) forget(policy.evaluation->tasks);
  }
  state.rest_ends.clear();
}

void tell_leases(Context& context, const WorkerId& worker) {
  const State& state = context.state;
  const std::vector<WorkId> held = state.leases.of(worker);
  Hold hold;
  for (const WorkId& work : held)
    hold.leases.push_back({work.lane, {work.member, state.leases.at(work).attempt}});
  // First of all: what the worker drops on it must not be what the next messages give.
  context.tell(worker, std::move(hold));
  for (const WorkId& work : held) {
    tell_lease(context, state.workers.at(worker), work, *find_task(state, work.lane, work.member),
               state.leases.at(work));
  }
}

void expire_leases(Context& context) {
  State& state = context.state;
  while (!state.leases.empty() && state.leases.next_deadline() <= state.now) {
    const WorkId work = state.leases.next();
    const Lease lease = abort_lease(context, work);
    record_fault(context, lease.worker, Fault::kSilent,
                 fmt::format("no answer within the deadline ({})", to_string(work.member)));
    // A verifier past its deadline has failed as a verifier; of an attempt nothing is known but
    // that it is lost (law 6.1).
    fail(context, work, lease,
         lease.kind == LeaseKind::kVerify ? Outcome::kVerifierFailed : Outcome::kLost);
  }
  // Whoever waited for it is seen to when work is given out.
  state.rest_ends.erase(state.rest_ends.begin(), state.rest_ends.upper_bound(state.now));
}

void abort_all(Context& context) {
  State& state = context.state;
  for (const WorkId& work : state.leases.where([](const Lease&) { return true; })) {
    // Nothing is counted: a stop is nobody's failure.
    queue_again(state, work, abort_lease(context, work).kind);
  }
}

void lose_sample(Context& context, const WorkId& work) {
  void_work(context, work);
  Member& member = member_of(context.state, work);
  member.phase = Phase::kWaiting;
  member.min_version = member.max_version = -1;
  member.has_body = false;
  member.reward.reset();
  member.judged.reset();
  add_waiting(context.state, work);
}

// The members themselves stay as they are: the caller ends the task or replaces them.
void void_members(Context& context, Lane lane, const TaskId& id, const Task& task) {
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    // Nothing is left of a settled member (law 15.3).
    if (settled(task.members[static_cast<size_t>(i)])) continue;
    void_work(context, {lane, member_id(id, task.launch, i)});
  }
}

void drop_surplus_members(Context& context, Lane lane, const TaskId& id, Task& task) {
  Release release;
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    Member& member = task.members[static_cast<size_t>(i)];
    if (settled(member)) continue;
    const WorkId work{lane, member_id(id, task.launch, i)};
    void_work(context, work);
    drop_prefix(context, work, member);
    if (std::exchange(member.has_body, false))
      release.bodies.push_back({lane, {work.member, member.attempt}});
    member.phase = Phase::kSurplus;
  }
  discard(context, lane, id.policy, std::move(release));
}

void release_bodies(Context& context, Lane lane, const TaskId& id, Task& task) {
  Release release{bodies_of(lane, id, task)};
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    Member& member = task.members[static_cast<size_t>(i)];
    // A task outlives its bodies; nobody may count on them or release them once more.
    member.has_body = false;
    if (const auto prefix = std::exchange(member.prefix, std::nullopt))
      release.bodies.push_back(prefix_of({lane, member_id(id, task.launch, i)}, *prefix));
  }
  discard(context, lane, id.policy, std::move(release));
}

}  // namespace tailrace::scheduler
