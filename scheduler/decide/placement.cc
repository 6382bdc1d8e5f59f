#include "scheduler/decide/placement.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "scheduler/decide/attempts.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/health.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// Rest of a worker to which weights cannot come. A source that is dead for a moment costs little,
// and one that stays dead is not asked all the time.
constexpr Time kFirstRest = std::chrono::seconds(1), kLongestRest = std::chrono::seconds(60);

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

// Where the siblings are, and how many: a few workers in no order, by the names that the leases
// have.
class Siblings {
 public:
  void find(const State& state, const WorkId& work, const Task& task) {
    WorkId sibling = work;
    for (int32_t i = 0; i < std::ssize(task.members); ++i) {
      if (task.members[static_cast<size_t>(i)].phase != Phase::kRunning) continue;
      sibling.member.member = i;
      const WorkerId& worker = state.leases.at(sibling).worker;
      const auto known = search(worker);
      if (known == at_.end()) {
        at_.push_back({&worker, 1});
      } else {
        ++known->count;
      }
    }
  }
  int64_t count_at(const WorkerId& worker) {
    const auto known = search(worker);
    return known == at_.end() ? 0 : known->count;
  }

  struct At {
    const WorkerId* worker = nullptr;
    int64_t count = 0;
  };
  const std::vector<At>& all() const { return at_; }

 private:
  std::vector<At>::iterator search(const WorkerId& worker) {
    return std::ranges::find_if(at_, [&](const At& at) { return *at.worker == worker; });
  }
  std::vector<At> at_;
};

// Law 6.6: while others that could take it still install, none takes more than its share of the
// work: the first that holds a new version would else take all of a step, and the others idle.
// These are the others of its pool, and, for members that may go to any, those of all pools.
class FairShare {
 public:
  // The share of the work that waits for `need`, in this pool.
  FairShare(const State& state, const Need& need, const PoolId& id, const Index::Pool& pool)
      : state_(state), pool_(pool) {
    if (pool_.load.installing > 0) {
      shared_[0] = pool_.load;
      shared_[0].leased += waiting_for(need.policy, id.name);
      if (need.pool.empty() && !id.name.empty())
        shared_[0].leased += waiting_for(need.policy, need.pool);
    }
    if (!need.pool.empty()) return;
    if (const Index::Load& all = state.index.load_of(need.policy); all.installing > 0) {
      shared_[1] = all;
      shared_[1].leased += waiting_for_any(need.policy);
    }
  }

  // The worker of this seat has not come to its share.
  bool within(const Seat& seat) const {
    if (!limited()) return true;
    if (seat.has_faults) return false;  // there are better ones, in a moment
    const Worker& worker = state_.workers.at(seat.worker);
    return worker.leased < most_leases(worker.slots);
  }

  // Nobody with this much room or less has. Most pools have few sizes of workers, mostly one: a
  // search that ends here sees one seat, and not all that are full of their share.
  bool beyond(const Seat& seat) const {
    if (!limited()) return false;
    if (seat.has_faults) return true;
    // Without faults room is what is left of the slots.
    return std::ranges::all_of(pool_.sizes, [&](const auto& size) {
      return most_leases(size.first) <= size.first - seat.room;
    });
  }

 private:
  // Members that wait and name this pool, or none.
  int64_t waiting_for(PolicyId policy, const std::string& pool) const {
    int64_t count = 0;
    for (const auto& [need, members] : state_.waiting)
      if (need.policy == policy && need.pool == pool) count += std::ssize(members);
    return count;
  }

  // Members that all pools share: of members that name a pool no more than it has room for, or its
  // backlog would make the share of a worker elsewhere as large as it likes.
  int64_t waiting_for_any(PolicyId policy) const {
    int64_t count = waiting_for(policy, {});
    std::map<std::string_view, int64_t> named;
    for (const auto& [need, members] : state_.waiting)
      if (need.policy == policy && !need.pool.empty()) named[need.pool] += std::ssize(members);
    for (const auto& [name, members] : named) {
      const Index::Load& load = state_.index.pool({policy, std::string(name)}).load;
      count += std::clamp(load.slots - load.leased, int64_t{0}, members);
    }
    return count;
  }

  bool limited() const { return shared_[0].installing > 0 || shared_[1].installing > 0; }

  // The most leases that a worker with so many slots may hold by its share.
  int64_t most_leases(int64_t slots) const {
    int64_t most = std::numeric_limits<int64_t>::max();
    for (const Index::Load& shared : shared_) {
      // By slots.
      if (shared.installing > 0)
        most = std::min(most, (shared.leased * slots + shared.slots - 1) / shared.slots);
    }
    // Not in whole groups, though siblings would share their prompt: rounded up nothing is left to
    // the last to install, and what is rounded off waits until all have.
    return most;
  }

  const State& state_;
  const Index::Pool& pool_;
  // Slots, and what runs and waits, to be shared by them; as long as somebody installs.
  std::array<Index::Load, 2> shared_;
};

// Workers that are asked: all, or those that are to prove themselves.
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
    Siblings siblings;
    // With one seat there is nothing to choose.
    if (state_.config.mode.dispatch == Dispatch::kPrefixAffine && state_.index.num_seats() > 1 &&
        several_seats())
      siblings.find(state_, work, task);
    const Seat* best = nullptr;
    int64_t most_siblings = 0;
    const auto consider = [&](const Seat& seat) {
      const int64_t count = siblings.count_at(seat.worker);
      const bool better = best == nullptr || seat.has_faults < best->has_faults ||
                          (seat.has_faults == best->has_faults &&
                           (count > most_siblings || (count == most_siblings && seat < *best)));
      if (better) best = &seat, most_siblings = count;
    };
    visit_seats([&](const FairShare& share, const Seats& seats) {
      // Without siblings the first that may is the best of its version.
      for (const Seat& seat : seats) {
        if (share.beyond(seat)) break;
        if (would_go_back(member, seat.worker)) break;  // and so would all of its version
        if (is_avoided(state_, member, seat.worker) || !may_take(share, seat)) continue;
        consider(seat);
        break;
      }
      for (const Siblings::At& at : siblings.all()) {
        const Seat* seat = seat_of(seats, *at.worker);
        if (seat != nullptr && !would_go_back(member, *at.worker) &&
            !is_avoided(state_, member, *at.worker) && may_take(share, *seat))
          consider(*seat);
      }
      return true;
    });
    return best == nullptr ? WorkerId() : best->worker;
  }

  // Somebody could take one that avoids nobody.
  bool has_seat() const {
    return !visit_seats([&](const FairShare& share, const Seats& seats) {
      for (const Seat& seat : seats) {
        if (share.beyond(seat)) return true;
        if (may_take(share, seat)) return false;
      }
      return true;
    });
  }

 private:
  // The seats that hold weights which will do: pool by pool, of each from the oldest. `visit`
  // returns whether to go on; so does this.
  template <class Visit>
  bool visit_seats(const Visit& visit) const {
    return visit_pools([&](const PoolId& id, const Index::Pool& pool) {
      const FairShare share(state_, need_, id, pool);
      return visit_versions(pool, [&](const Seats& seats) { return visit(share, seats); });
    });
  }
  template <class Visit>
  bool visit_pools(const Visit& visit) const {
    const auto& pools = state_.index.pools();
    for (auto pool = pools.lower_bound({need_.policy, need_.pool}); pool != pools.end(); ++pool) {
      const PoolId& id = pool->first;
      if (id.policy != need_.policy || (!need_.pool.empty() && id.name != need_.pool)) break;
      if (!visit(id, pool->second)) return false;
    }
    return true;
  }
  template <class Visit>
  bool visit_versions(const Index::Pool& pool, const Visit& visit) const {
    for (auto open = pool.versions.lower_bound(least_); open != pool.versions.end(); ++open) {
      if (need_.lane == Lane::kEval && open->first > least_) break;
      if (!open->second.seats.empty() && !visit(open->second.seats)) return false;
    }
    return true;
  }

  bool several_seats() const {
    size_t count = 0;
    return !visit_pools([&](const PoolId&, const Index::Pool& pool) {
      return visit_versions(pool, [&](const Seats& seats) { return (count += seats.size()) <= 1; });
    });
  }

  // Law 6.8: turns are not gone on from by older weights than theirs.
  bool would_go_back(const Member& member, const WorkerId& id) const {
    return member.prefix && state_.workers.at(id).version < member.prefix->max_version;
  }

  bool may_take(const FairShare& share, const Seat& seat) const {
    if (ask_ == Ask::kProving && !state_.index.proving().contains(seat.worker)) return false;
    return share.within(seat);
  }

  const Seat* seat_of(const Seats& seats, const WorkerId& id) const {
    const auto worker = state_.workers.find(id);
    if (worker == state_.workers.end()) return nullptr;
    const int64_t room = usable_slots(state_, id, worker->second) - worker->second.leased;
    if (room <= 0) return nullptr;
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

// The version is so far as this install is.
void advance_version(State& state, const Worker& worker, VersionState reached) {
  auto& lineage = state.policies.at(worker.policy).lineage;
  const auto weights = lineage.find(worker.install->version);
  if (weights == lineage.end() || weights->second.digest != worker.install->digest) return;
  weights->second.state = std::max(weights->second.state, reached);
}

// One that was about to switch may have done it or not: it is asked to hold something else first.
void end_install(Worker& worker) {
  if (worker.install && worker.install->phase == Install::Phase::kSwitching) worker.version = -1;
  worker.install.reset();
}

void stage(Context& context, const WorkerId& id, Worker& worker, const Policy& policy) {
  end_install(worker);
  const int64_t version = *next_version(context.state, policy, id, worker);
  const Weights& weights = policy.lineage.at(version);
  worker.install = {.phase = Install::Phase::kStaging,
                    .version = version,
                    .digest = weights.digest,
                    .deadline = context.state.now + context.config().deadlines.install};
  touch(context.state, id);
  context.tell(id, wire::Stage{.policy = worker.policy,
                               .version = version,
                               .digest = weights.digest,
                               .manifest = weights.manifest});
}

void switch_weights(Context& context, const WorkerId& id, Worker& worker) {
  worker.install->phase = Install::Phase::kSwitching;
  advance_version(context.state, worker, VersionState::kCommitted);
  worker.install->deadline = context.state.now + context.config().deadlines.install;
  touch(context.state, id);
  context.tell(id, wire::Switch{.policy = worker.policy,
                                .version = worker.install->version,
                                .digest = worker.install->digest});
}

// It is asked again by refresh_workers(), after its quarantine if that was one fault too many.
void fail_install(Context& context, const WorkerId& id, Worker& worker, const std::string& reason) {
  const int64_t version = worker.install->version;
  end_install(worker);
  touch(context.state, id);
  record_fault(context, id, Fault::kInstall, fmt::format("version {}: {}", version, reason));
}

// An install that failed by no fault of the worker is asked for again after ever longer rests.
void rest(Context& context, Worker& worker, const InstallFailed& event) {
  end_install(worker);
  if (!worker.rest) worker.rest.emplace();
  StageRest& rest = *worker.rest;
  rest.until = context.state.now + doubled(kFirstRest, rest.times++, kLongestRest);
  rest.version = event.version;
  rest.cause = event.cause;
  rest.reason = event.reason;
  touch(context.state, event.worker);
}

void begin_attempt(Context& context, const WorkId& work, Task& task, const WorkerId& worker,
                   std::optional<Lease::Before> before = {}) {
  State& state = context.state;
  Member& member = task.members[static_cast<size_t>(work.member.member)];
  member.phase = Phase::kRunning;
  Worker& holder = state.workers.at(worker);
  member.granted_version = holder.version;
  member.attempt = ++member.last_attempt;
  // Law 6.8: what it could not be sampled by today is sampled again.
  if (member.prefix &&
      member.prefix->min_version <
          least_version(state, need_of(state, work.lane, task_of(work.member), task)))
    drop_prefix(context, work, member);
  if (member.prefix) {
    member.granted_version = std::min(member.granted_version, member.prefix->min_version);
    if (work.lane == Lane::kTrain)
      state.policies.at(work.member.policy).attempts.resumed_tokens += member.prefix->tokens;
  }
  begin_lease(context, work, task, holder,
              {.kind = LeaseKind::kGenerate,
               .worker = worker,
               .attempt = member.attempt,
               .verify_attempt = 0,
               .deadline = state.now + context.config().deadlines.lease,
               .before = std::move(before),
               .turns = member.prefix ? member.prefix->turns : 0});
}

// A queue is left alone at the first member that finds no room: it may be long, and other room is
// of no use to it.
bool grant(Context& context, const Need& need, std::set<Waiting>& queue, Ask ask) {
  State& state = context.state;
  const Chooser chooser(state, need, ask);
  bool granted = false;
  for (auto it = queue.begin(); it != queue.end();) {
    const WorkId work = it->work;
    Task& task = *find_task(state, work.lane, work.member);
    const Member& member = task.members[static_cast<size_t>(work.member.member)];
    const bool tried = tried_before(member);
    const bool asks = ask == Ask::kAll || !tried;
    const WorkerId worker = asks ? chooser.pick(work, task) : WorkerId();
    if (!worker.empty()) {
      it = queue.erase(it);
      begin_attempt(context, work, task, worker);
      granted = true;
    } else if ((tried || member.prefix) && chooser.has_seat()) {
      // A worker with room may be the one that it avoids, or have older weights than its turns.
      ++it;
    } else {
      break;
    }
  }
  return granted;
}

// Whether anything was granted.
bool grant(Context& context, Ask ask) {
  State& state = context.state;
  bool granted = false;
  for (auto it = state.waiting.begin(); it != state.waiting.end();) {
    if (state.index.num_seats() == 0) break;
    granted = grant(context, it->first, it->second, ask) || granted;
    it = it->second.empty() ? state.waiting.erase(it) : std::next(it);
  }
  return granted;
}

}  // namespace

void refresh_workers(Context& context) {
  State& state = context.state;
  recall_workers(context);
  for (auto& [policy_id, policy] : state.policies) {
    const auto behind = state.index.behind().find(policy_id);
    // In a replay nobody installs (law 9.3).
    if (behind == state.index.behind().end() || !at_frontier(policy)) continue;
    for (const WorkerId& id : std::set<WorkerId>(behind->second)) {
      Worker& worker = state.workers.at(id);
      if (worker.indexed.step == InstallStep::kForget) {
        end_install(worker);
        touch(state, id);
      }
      if (worker.indexed.step == InstallStep::kStage) stage(context, id, worker, policy);
      if (worker.indexed.step == InstallStep::kSwitch) switch_weights(context, id, worker);
    }
  }
}

void on(Context& context, const Staged& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  worker.install->phase = Install::Phase::kStaged;
  worker.install->deadline = {};
  worker.rest.reset();
  advance_version(context.state, worker, VersionState::kStaged);
  touch(context.state, event.worker);
}

void on(Context& context, const StageProgress& event) {
  if (!expects(context.state, event)) return;
  Install& install = *context.state.workers.at(event.worker).install;
  install.bytes = event.bytes;
  install.deadline = context.state.now + context.config().deadlines.install;
  touch(context.state, event.worker);
}

void on(Context& context, const Installed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  worker.install.reset();
  worker.version = worker.held = event.version;
  worker.digest = event.digest;
  const auto policy = context.state.policies.find(worker.policy);
  // Past it again, if it was recalled.
  if (policy != context.state.policies.end() && policy->second.evaluation &&
      event.version > policy->second.evaluation->version)
    policy->second.evaluation->recalled.erase(event.worker);
  touch(context.state, event.worker);
  // From now on no single worker ends the run (law 7.1).
  context.state.begun = true;
}

void on(Context& context, const InstallFailed& event) {
  if (!expects(context.state, event)) return;
  Worker& worker = context.state.workers.at(event.worker);
  const Policy& policy = context.state.policies.at(worker.policy);
  const bool was_staging = worker.install->phase == Install::Phase::kStaging;
  if (was_staging && next_version(context.state, policy, event.worker, worker) != event.version) {
    // Its files may have been let go: nobody is at fault, and the next one is asked for.
    end_install(worker);
    return touch(context.state, event.worker);
  }
  if (is_no_fault(event.cause)) return rest(context, worker, event);
  fail_install(context, event.worker, worker, event.reason);
}

void expire_installs(Context& context) {
  State& state = context.state;
  std::vector<WorkerId> late;
  for (const auto& [deadline, id] : state.index.deadlines()) {
    if (deadline > state.now) break;
    // A worker that is away has another deadline, that of its absence.
    if (state.workers.at(id).connected) late.push_back(id);
  }
  for (const WorkerId& id : late)
    fail_install(context, id, state.workers.at(id), "no answer within the deadline");
}

void grant_held_out(Context& context) {
  State& state = context.state;
  for (auto it = state.waiting.begin();
       it != state.waiting.end() && it->first.lane == Lane::kEval;) {
    if (it->first.floor < state.policies.at(it->first.policy).frontier)
      grant(context, it->first, it->second, Ask::kAll);
    it = it->second.empty() ? state.waiting.erase(it) : std::next(it);
  }
}

void grant_waiting(Context& context) {
  const State& state = context.state;
  if (state.waiting.empty() || state.index.num_seats() == 0) return;
  // First, so that a worker proves itself with what nobody has failed at: with the prompt that had
  // brought it there it would fail again.
  if (!state.index.proving().empty()) grant(context, Ask::kProving);
  // A grant for one need may make the part of a pool larger for another (law 6.6).
  while (grant(context, Ask::kAll) && state.waiting.size() > 1) {
  }
}

void on(Context& context, const Stalled& event) {
  if (!expects(context.state, event)) return;
  context.state.workers.at(event.worker).stalled = event.stalled;
  touch(context.state, event.worker);
}

// As long as nobody has room it stays where it is: it may go on there.
bool move_stalled(Context& context) {
  State& state = context.state;
  const Index& index = state.index;
  if (index.stuck().empty() || index.num_seats() == 0) return false;
  bool moved = false;
  std::vector<WorkId> stuck;
  for (const WorkerId& id : index.stuck())
    std::ranges::copy(state.leases.of(id), std::back_inserter(stuck));
  std::ranges::sort(stuck);
  for (const WorkId& work : stuck) {
    if (index.num_seats() == 0) break;
    Task& task = *find_task(state, work.lane, work.member);
    Member& member = task.members[static_cast<size_t>(work.member.member)];
    // Each of its workers stands still: its deadline will tell (law 8.6).
    if (member.moves >= context.config().retries.returned) continue;
    const Need need = need_of(state, work.lane, task_of(work.member), task);
    const WorkerId worker = Chooser(state, need, Ask::kAll).pick(work, task);
    if (worker.empty()) continue;
    const Lease lease = take_back(context, work);
    ++member.moves;
    moved = true;
    begin_attempt(context, work, task, worker, Lease::Before{lease.worker, lease.attempt});
  }
  return moved;
}

void verify_waiting(Context& context) {
  State& state = context.state;
  for (auto it = state.to_verify.begin();
       it != state.to_verify.end() && !state.index.rewards().empty();) {
    const WorkId work = *it;
    const Task& task = *find_task(state, work.lane, work.member);
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
    begin_lease(context, work, task, state.workers.at(worker),
                {.kind = LeaseKind::kVerify,
                 .worker = worker,
                 .attempt = member.attempt,
                 .verify_attempt = member.verify_attempt,
                 .deadline = state.now + context.config().deadlines.verify});
  }
}

}  // namespace tailrace::scheduler
