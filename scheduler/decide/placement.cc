#include "scheduler/decide/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/health.h"

namespace tailrace::scheduler {
namespace {

// The oldest weights that what waits for `need` may be sampled by.
int64_t least_version(const State& state, const Need& need) {
  if (need.lane == Lane::kEval) return need.floor;
  const Mode& mode = state.config.mode;
  const int64_t frontier = state.policies.at(need.policy).frontier;
  // It would be mixed, or due too soon to be planned with (law 4.2).
  if (mode.install == InstallWhen::kDrained || mode.on_stale == OnStale::kWait) return frontier;
  // It would be too old before it begins.
  if (mode.on_stale == OnStale::kDrop) return std::max(need.floor, frontier - mode.max_staleness);
  return need.floor;
}

// Law 6.5: it failed there a moment ago. Without this the worker that has just failed would have
// most room, and most siblings, for the retry.
bool is_avoided(const State& state, const Member& member, const WorkerId& id) {
  const auto rest = member.rests.find(id);
  return rest != member.rests.end() && rest->second > state.now;
}

// Where the siblings are, and how many.
std::map<WorkerId, int64_t> siblings_of(const State& state, const WorkId& work, const Task& task) {
  std::map<WorkerId, int64_t> at;
  WorkId sibling = work;
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    if (task.members[static_cast<size_t>(i)].phase != Phase::kRunning) continue;
    sibling.member.member = i;
    ++at[state.leases.at(sibling).worker];
  }
  return at;
}

// Law 6.6: while others of a policy's pool still install, none takes more than its part of the
// work: the first that holds a new version would else take all of a step, and the others idle.
// `worker`: of the policy, and connected. Leases that it may hold, its slots aside.
int64_t part_of(const State& state, PolicyId policy, const WorkerId& id, const Worker& worker) {
  const Index::Pool pool = state.index.pool(policy);
  if (pool.installing == 0) return std::numeric_limits<int64_t>::max();
  if (has_faults(state, id)) return 0;  // there are better ones, in a moment
  int64_t work = pool.leased;
  for (const auto& [need, members] : state.waiting)
    if (need.policy == policy) work += std::ssize(members);
  // By slots; where siblings share their prompt, up to whole groups.
  const int64_t part = (work * worker.slots + pool.slots - 1) / pool.slots;
  if (state.config.mode.dispatch == Dispatch::kLeastLoaded) return part;
  const int64_t group = state.config.group_size;
  return (part + group - 1) / group * group;
}

// After a quarantine. One that was silent would hold what it gets until its deadline, so it gets
// only what is left.
bool proves_itself(const State& state, const WorkerId& id) {
  return on_trial(state, id) && state.health.at(id).fault != Fault::kSilent;
}

// Who is asked: everybody, or those who are to prove themselves.
enum class Ask { kAll, kProving };

// The best worker for members of one need, as far as it does not depend on the member.
class Chooser {
 public:
  Chooser(const State& state, const Need& need, Ask ask)
      : state_(state), need_(need), ask_(ask), least_(least_version(state, need)) {}

  // No faults, then most siblings (if the mode looks at them), then most room, then the first name.
  // Empty: nobody.
  WorkerId pick(const WorkId& work, const Task& task) const {
    const Member& member = task.members[static_cast<size_t>(work.member.member)];
    std::map<WorkerId, int64_t> siblings;
    if (state_.config.mode.dispatch == Dispatch::kPrefixAffine)
      siblings = siblings_of(state_, work, task);
    const Seat* best = nullptr;
    int64_t most_siblings = 0;
    const auto consider = [&](const Seat& seat) {
      const auto at = siblings.find(seat.worker);
      const int64_t count = at == siblings.end() ? 0 : at->second;
      const bool better = best == nullptr || seat.has_faults < best->has_faults ||
                          (seat.has_faults == best->has_faults &&
                           (count > most_siblings || (count == most_siblings && seat < *best)));
      if (better) best = &seat, most_siblings = count;
    };
    const auto& seats_by_version = state_.index.rollouts();
    const int64_t newest = need_.lane == Lane::kEval ? least_ : std::numeric_limits<int64_t>::max();
    for (auto it = seats_by_version.lower_bound({need_.policy, least_});
         it != seats_by_version.end() && it->first.first == need_.policy &&
         it->first.second <= newest;
         ++it) {
      // Without siblings the first that may is the best of its version.
      for (const Seat& seat : it->second) {
        if (!may_take(member, seat)) continue;
        consider(seat);
        break;
      }
      for (const auto& [id, count] : siblings) {
        const Seat* seat = seat_of(it->second, id);
        if (seat != nullptr && may_take(member, *seat)) consider(*seat);
      }
    }
    return best == nullptr ? WorkerId() : best->worker;
  }

 private:
  bool may_take(const Member& member, const Seat& seat) const {
    if (is_avoided(state_, member, seat.worker)) return false;
    if (ask_ == Ask::kProving && !proves_itself(state_, seat.worker)) return false;
    const Worker& worker = state_.workers.at(seat.worker);
    return part_of(state_, need_.policy, seat.worker, worker) > worker.leased;
  }

  const Seat* seat_of(const Seats& seats, const WorkerId& id) const {
    const auto worker = state_.workers.find(id);
    if (worker == state_.workers.end()) return nullptr;
    const int64_t room = usable_slots(state_, id, worker->second) - worker->second.leased;
    const auto seat = seats.find(Seat{has_faults(state_, id), room, id});
    return seat == seats.end() ? nullptr : &*seat;
  }

  const State& state_;
  const Need& need_;
  const Ask ask_;
  const int64_t least_;
};

WorkerId pick_reward(const State& state, const Member& member) {
  // A verifier holds no weights and serves every policy.
  for (const Seat& seat : state.index.rewards()) {
    if (!is_avoided(state, member, seat.worker)) return seat.worker;
  }
  return {};
}

void install(Context& context, const WorkerId& id, Worker& worker, int64_t version,
             const Weights& weights) {
  worker.phase = WorkerPhase::kInstalling;
  worker.target = version;
  worker.target_digest = weights.digest;
  worker.install_deadline = context.state.now + context.config().deadlines.install;
  touch(context.state, id);
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
  touch(context.state, id);
  record_fault(context, id, Fault::kInstall, fmt::format("version {}: {}", worker.target, reason));
}

void begin_attempt(Context& context, const WorkId& work, Member& member, const WorkerId& worker) {
  State& state = context.state;
  drop_waiting(state, work);
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

// What nobody has room for is asked once a need, and not for each that waits: the queue may be
// long, and the room of no use to it.
void grant(Context& context, const Need& need, Ask ask) {
  State& state = context.state;
  const Chooser chooser(state, need, ask);
  WorkId next;
  for (bool first = true;; first = false) {
    // Found anew: a grant takes its member out of the queue, and the last one the queue.
    const auto queue = state.waiting.find(need);
    if (queue == state.waiting.end()) return;
    const auto it = first ? queue->second.begin() : queue->second.upper_bound(next);
    if (it == queue->second.end()) return;
    next = *it;
    const Task& task = *find_task(state, next.lane, next.member);
    Member& member = member_of(state, next);
    if (ask == Ask::kProving && tried_before(member)) continue;
    const WorkerId worker = chooser.pick(next, task);
    if (!worker.empty()) {
      begin_attempt(context, next, member, worker);
    } else if (!tried_before(member)) {
      // Of one that has failed before, a worker with room may be the one that it avoids.
      return;
    }
  }
}

void grant(Context& context, Ask ask) {
  std::vector<Need> needs;
  for (const auto& [need, members] : context.state.waiting) needs.push_back(need);
  for (const Need& need : needs) {
    if (context.state.index.rollouts().empty()) return;
    grant(context, need, ask);
  }
}

}  // namespace

void refresh_workers(Context& context) {
  State& state = context.state;
  for (auto& [policy_id, policy] : state.policies) {
    const auto behind = state.index.behind().find(policy_id);
    // In a replay nobody installs (law 9.3).
    if (behind == state.index.behind().end() || !at_frontier(policy)) continue;
    for (const WorkerId& id : std::set<WorkerId>(behind->second)) {
      install(context, id, state.workers.at(id), policy.frontier,
              policy.lineage.at(policy.frontier));
    }
  }
}

void on_installed(Context& context, const Installed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  worker.phase = WorkerPhase::kOpen;
  worker.version = event.version;
  worker.digest = event.digest;
  touch(context.state, event.worker);
  // From now on no single worker ends the run (law 7.1).
  context.state.begun = true;
}

void on_install_failed(Context& context, const InstallFailed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  fail_install(context, event.worker, worker, event.reason);
}

void expire_installs(Context& context) {
  State& state = context.state;
  std::vector<WorkerId> late;
  for (const auto& [deadline, id] : state.index.deadlines()) {
    if (deadline > state.now) break;
    // Who is away has another deadline, that of its absence.
    if (state.workers.at(id).connected) late.push_back(id);
  }
  for (const WorkerId& id : late)
    fail_install(context, id, state.workers.at(id), "no answer within the deadline");
}

void grant_waiting(Context& context) {
  const State& state = context.state;
  if (state.waiting.empty() || state.index.rollouts().empty()) return;
  // First, so that a worker proves itself with what nobody has failed at: with the prompt that had
  // brought it there it would fail again.
  if (std::ranges::any_of(state.health,
                          [&](const auto& entry) { return proves_itself(state, entry.first); }))
    grant(context, Ask::kProving);
  grant(context, Ask::kAll);
}

void verify_waiting(Context& context) {
  State& state = context.state;
  for (auto it = state.to_verify.begin();
       it != state.to_verify.end() && !state.index.rewards().empty();) {
    const WorkId work = *it;
    Member& member = member_of(state, work);
    const WorkerId worker = pick_reward(state, member);
    // It waits for another verifier than the one that has room; those behind it need not.
    if (worker.empty()) {
      ++it;
      continue;
    }
    it = state.to_verify.erase(it);
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
