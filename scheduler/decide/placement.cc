#include "scheduler/decide/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

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

// The oldest weights that a member may be sampled by.
int64_t least_version(const State& state, const WorkId& work, const Task& task) {
  if (work.lane == Lane::kEval) return task.weight_floor;
  const Mode& mode = state.config.mode;
  const int64_t frontier = state.policies.at(work.member.policy).frontier;
  // It would be mixed, or due too soon to be planned with (law 4.2).
  if (mode.install == InstallWhen::kDrained || mode.on_stale == OnStale::kWait) return frontier;
  // It would be too old before it begins.
  if (mode.on_stale == OnStale::kDrop)
    return std::max(task.weight_floor, frontier - mode.max_staleness);
  return task.weight_floor;
}

bool holds_weights_for(const Worker& worker, const WorkId& work, int64_t least) {
  if (worker.role != Role::kRollout || !is_open(worker) || worker.policy != work.member.policy)
    return false;
  return work.lane == Lane::kEval ? worker.version == least : worker.version >= least;
}

// Law 6.5: it failed there a moment ago. Without this the worker that has just failed would have
// most room, and most siblings, for the retry.
bool is_avoided(const State& state, const Member& member, const WorkerId& id) {
  const auto rest = member.rests.find(id);
  return rest != member.rests.end() && rest->second > state.now;
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

// Law 6.6: while others of a policy's pool still install, none takes more than its part of the
// work: the first that holds a new version would else take all of a step, and the others idle.
class Parts {
 public:
  explicit Parts(const State& state) : state_(state) {
    for (const auto& [id, worker] : state.workers) {
      // One that has failed is not waited for: it may hang.
      if (worker.role != Role::kRollout || !worker.connected || has_faults(state, id)) continue;
      Pool& pool = pools_[worker.policy];
      pool.installing |= worker.phase == WorkerPhase::kInstalling;
      pool.slots += worker.slots;
      pool.work += worker.leased;
    }
    const auto installs = [](const auto& entry) { return entry.second.installing; };
    // The list may be long, and mostly nobody installs.
    if (std::ranges::none_of(pools_, installs)) return;
    for (const WorkId& work : state.waiting) {
      const auto pool = pools_.find(work.member.policy);
      if (pool != pools_.end()) ++pool->second.work;
    }
  }

  // Leases that the worker may hold, its slots aside.
  int64_t of(const WorkerId& id, const Worker& worker) const {
    const auto it = pools_.find(worker.policy);
    if (it == pools_.end() || !it->second.installing) return std::numeric_limits<int64_t>::max();
    const Pool& pool = it->second;
    if (has_faults(state_, id)) return 0;  // there are better ones, in a moment
    // By slots; where siblings share their prompt, up to whole groups.
    const int64_t part = (pool.work * worker.slots + pool.slots - 1) / pool.slots;
    if (state_.config.mode.dispatch == Dispatch::kLeastLoaded) return part;
    const int64_t group = state_.config.group_size;
    return (part + group - 1) / group * group;
  }

 private:
  struct Pool {
    int64_t slots = 0;
    int64_t work = 0;  // leased and waiting
    bool installing = false;
  };
  std::map<PolicyId, Pool> pools_;
  const State& state_;
};

// After a quarantine. One that was silent would hold what it gets until its deadline, so it gets
// only what is left.
bool proves_itself(const State& state, const WorkerId& id) {
  return on_trial(state, id) && state.health.at(id).fault != Fault::kSilent;
}

// Who is asked: everybody, or those who are to prove themselves.
enum class Ask { kAll, kProving };

// No faults, then most siblings (if the mode looks at them), then most room, then the first name.
WorkerId pick_rollout(const State& state, const WorkId& work, const Task& task, int64_t least,
                      const Parts& parts, Ask ask) {
  const bool by_siblings = state.config.mode.dispatch == Dispatch::kPrefixAffine;
  const Member& member = task.members[static_cast<size_t>(work.member.member)];
  WorkerId best;
  std::tuple<bool, int64_t, int64_t> best_rank(false, -1, -1);
  for (const auto& [id, worker] : state.workers) {
    if (!holds_weights_for(worker, work, least)) continue;
    if (ask == Ask::kProving && !proves_itself(state, id)) continue;
    const int64_t room = std::min(room_of(state, id, worker), parts.of(id, worker) - worker.leased);
    if (room <= 0 || is_avoided(state, member, id)) continue;
    const std::tuple rank(!has_faults(state, id),
                          by_siblings ? siblings_at(state, work, task, id) : 0, room);
    // Strictly more, in the order of names: equal workers are told apart the same way in every
    // replay.
    if (best.empty() || rank > best_rank) best = id, best_rank = rank;
  }
  return best;
}

WorkerId pick_reward(const State& state, const Member& member) {
  WorkerId best;
  std::pair<bool, int64_t> best_rank(false, 0);
  for (const auto& [id, worker] : state.workers) {
    // A verifier holds no weights and serves every policy.
    if (worker.role != Role::kReward) continue;
    const int64_t room = room_of(state, id, worker);
    if (room == 0 || is_avoided(state, member, id)) continue;
    const std::pair rank(!has_faults(state, id), room);
    if (best.empty() || rank > best_rank) best = id, best_rank = rank;
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
bool may_install(const State& state, const WorkerId& id, const Worker& worker) {
  if (worker.role != Role::kRollout || !worker.connected || in_quarantine(state, id)) return false;
  if (state.config.mode.install == InstallWhen::kDrained && worker.leased > 0) return false;
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

void grant(Context& context, const Parts& parts, Ask ask) {
  State& state = context.state;
  int64_t room = total_room(state, Role::kRollout);
  // What nobody has room for is asked once, not for each that waits: the list may be long, and the
  // room of no use to it.
  std::set<std::tuple<Lane, PolicyId, int64_t>> without_room;
  for (auto it = state.waiting.begin(); it != state.waiting.end() && room > 0;) {
    const WorkId work = *it;
    const Task& task = *find_task(state, work.lane, work.member);
    Member& member = member_of(state, work);
    const int64_t least = least_version(state, work, task);
    const std::tuple need(work.lane, work.member.policy, least);
    const bool skipped = ask == Ask::kProving && tried_before(member);
    WorkerId worker;
    if (!skipped && !without_room.contains(need))
      worker = pick_rollout(state, work, task, least, parts, ask);
    // Others behind it may need an older version, or another policy.
    if (worker.empty()) {
      // Of one that has failed before, a worker with room may be the one that it avoids.
      if (!tried_before(member)) without_room.insert(need);
      ++it;
      continue;
    }
    it = state.waiting.erase(it);
    --room;
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

}  // namespace

void refresh_workers(Context& context) {
  for (auto& [id, worker] : context.state.workers) {
    if (!may_install(context.state, id, worker) || up_to_date(context.state, worker)) continue;
    const Policy& policy = context.state.policies.at(worker.policy);
    install(context, id, worker, policy.frontier, policy.lineage.at(policy.frontier));
  }
}

void on_installed(Context& context, const Installed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  worker.phase = WorkerPhase::kOpen;
  worker.version = event.version;
  worker.digest = event.digest;
  // From now on no single worker ends the run (law 7.1).
  context.state.begun = true;
}

void on_install_failed(Context& context, const InstallFailed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
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
  const State& state = context.state;
  if (state.waiting.empty() || total_room(state, Role::kRollout) == 0) return;
  const Parts parts(state);
  // First, so that a worker proves itself with what nobody has failed at: with the prompt that had
  // brought it there it would fail again.
  if (std::ranges::any_of(state.health,
                          [&](const auto& entry) { return proves_itself(state, entry.first); }))
    grant(context, parts, Ask::kProving);
  grant(context, parts, Ask::kAll);
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
