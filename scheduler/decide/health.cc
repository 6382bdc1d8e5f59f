#include "scheduler/decide/health.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// Attempts of a window for each worker that it judges, where these are more than its size.
constexpr int64_t kAttemptsOfEach = 4;

// Where a worker stands: all that it can stand in for.
struct Post {
  Role role;
  PolicyId policy;
  const std::string& pool;
  int32_t rank;
};
Post post_of(const Worker& worker) {
  return {worker.role, worker.policy, worker.site.pool, worker.rank};
}
Post post_of(const Health& health) {
  return {health.role, health.policy, health.pool, health.rank};
}

// The pool is the only one that samples of some dataset may go to: no other does its work.
bool is_bound(const State& state, const Post& post) {
  return post.role == Role::kRollout && state.config.binds(post.pool);
}

// It could do all the work of that one (law 7.5).
bool stands_in(const State& state, const Post& other, const Post& post) {
  return other.role == post.role && other.policy == post.policy && other.rank == post.rank &&
         (other.pool == post.pool || !is_bound(state, post));
}

// Its pool is written down with it: a worker that has left still counts in its pool (law
// 7.5).
Health& health_of(State& state, const WorkerId& id) {
  const Worker& worker = state.workers.at(id);
  Health& health = state.health[id];
  health.role = worker.role;
  health.policy = worker.policy;
  health.pool = worker.site.pool;
  health.rank = worker.rank;
  health.joined = worker.joined;
  return health;
}

// Whether the record of a worker that has left still counts against its name.
bool is_remembered(const State& state, const Health& health) {
  return std::max(health.until, health.left) + state.config.quarantine.longest > state.now;
}

// The same: not for ever, or a name that never comes would keep a dead run alive; and not of one
// that joined, which nobody starts again.
bool may_return(const State& state, const Health& health) {
  return !health.joined && is_remembered(state, health);
}

// An absent worker counts too, as long as it may return, or the one that stays behind would be
// judged as if it were alone. One that has come back is where it is now.
bool counts(const State& state, const WorkerId& id, const Health& health) {
  return !state.workers.contains(id) && may_return(state, health);
}

// All who could do the work of this one, and itself.
std::set<WorkerId> peers_of(const State& state, const Post& post) {
  std::set<WorkerId> peers;
  for (const auto& [id, worker] : state.workers) {
    if (stands_in(state, post_of(worker), post)) peers.insert(id);
  }
  for (const auto& [id, health] : state.health) {
    if (stands_in(state, post_of(health), post) && counts(state, id, health)) peers.insert(id);
  }
  return peers;
}

// Somebody else could do its work. Ends at the first one, which is mostly near.
bool has_peers(const State& state, const WorkerId& id, const Post& post) {
  return std::ranges::any_of(state.workers,
                             [&](const auto& other) {
                               return other.first != id &&
                                      stands_in(state, post_of(other.second), post);
                             }) ||
         std::ranges::any_of(state.health, [&](const auto& other) {
           return other.first != id && stands_in(state, post_of(other.second), post) &&
                  counts(state, other.first, other.second);
         });
}

// Halts when nobody is left who could do the work of this one. Who went away in quarantine counts
// as one who may come back, but not for ever.
void check_pool(Context& context, const WorkerId& last) {
  const State& state = context.state;
  const QuarantineConfig& config = state.config.quarantine;
  const Health& health = state.health.at(last);
  if (health.quarantines < config.limit) return;
  const Post post = post_of(health);
  const auto at_limit = [&](const Health& other) { return other.quarantines >= config.limit; };
  for (const auto& [id, worker] : state.workers) {
    // Law 7.5: one below the limit is hope enough, also one that is away and may come back.
    if (!stands_in(state, post_of(worker), post)) continue;
    const auto other = state.health.find(id);
    if (other == state.health.end() || !at_limit(other->second)) return;
  }
  for (const auto& [id, other] : state.health) {
    if (!stands_in(state, post_of(other), post) || at_limit(other)) continue;
    if (counts(state, id, other)) return;
  }
  halt(context,
       fmt::format("no {} worker{} is fit for work: {} was given up {} times in a row, "
                   "the last time ({}): {}",
                   name_of(health.role), is_bound(state, post) ? " of pool " + health.pool : "",
                   last, health.quarantines, name_of(health.fault), health.reason));
}

std::pair<Lane, TaskId> task_key(const WorkId& work) { return {work.lane, task_of(work.member)}; }

// Workers that are known and could do the work of this one, itself included.
int64_t num_known_peers(const State& state, const Post& post) {
  if (post.role == Role::kReward) return state.index.num_verifiers();
  return is_bound(state, post) ? state.index.num_samplers({post.policy, post.pool})
                               : state.index.num_samplers(post.policy);
}

// By how many attempts a pool is judged. So few that most of its workers are not among them say
// nothing of more than half of its workers: with a few of each, one that failed by chance is told
// from one that always does.
int64_t window_of(const State& state, const Post& post) {
  const int64_t window = state.config.breaker.window;
  return window == 0 ? 0 : std::max(window, kAttemptsOfEach * num_known_peers(state, post));
}

// Halts when this cause ends most attempts, and most of those of more than half of the pool's
// workers and of more than half of the tasks.
void check_window(Context& context, Breaker& breaker, Outcome cause, const Post& post) {
  const State& state = context.state;
  const int64_t all = breaker.window.size(), failed_in_all = breaker.window.count(cause);
  if (all == 0 || all < window_of(state, post)) return;
  const double share = state.config.breaker.share;
  // Three shares: of all answers, and of each worker's and each task's own. The first alone would
  // let one busy bad worker, or one broken prompt with all its members, end the run; the others
  // alone, one bad answer of who has given few.
  if (!AttemptWindow::exceeds(share, failed_in_all, all)) return;
  const int64_t failing_workers = breaker.window.workers_above(cause, share);
  // All who are known are of the pool: mostly this tells, without a walk over them.
  if (2 * failing_workers <= num_known_peers(state, post)) return;
  std::set<WorkerId> pool = peers_of(state, post);
  breaker.window.visit_workers([&](const WorkerId& worker) { pool.insert(worker); });
  if (2 * failing_workers <= std::ssize(pool)) return;
  struct Count {
    int64_t failed = 0, all = 0;
    void add(bool has_failed) { ++all, failed += has_failed; }
  };
  std::map<std::pair<Lane, TaskId>, Count> tasks;
  breaker.window.visit_all(
      [&](const auto& attempt) { tasks[task_key(attempt.work)].add(attempt.outcome == cause); });
  const auto failing_tasks = std::ranges::count_if(tasks, [&](const auto& entry) {
    return AttemptWindow::exceeds(share, entry.second.failed, entry.second.all);
  });
  // Work that is leased and has not failed yet speaks for itself: bad answers may come first.
  for (const WorkId& work :
       state.leases.where([&](const Lease& lease) { return pool.contains(lease.worker); }))
    tasks[task_key(work)];
  if (failing_tasks < 2 || 2 * failing_tasks <= std::ssize(tasks)) return;
  const auto last = breaker.last_reason.find(cause);
  halt(context,
       fmt::format("{} of the last {} attempts ended as {}{}", failed_in_all, all, name_of(cause),
                   last == breaker.last_reason.end() ? "" : "; the last one: " + last->second));
}

}  // namespace

void halt(Context& context, std::string reason) {
  // The first reason stays: those after it are mostly its consequences.
  if (!context.state.halted.empty()) return;
  context.state.halted = std::move(reason);
  context.act(Halt{context.state.halted});
}

void record_good(Context& context, const WorkerId& id) {
  const auto it = context.state.health.find(id);
  if (it == context.state.health.end()) return;
  // Single faults were never announced, so neither is their end.
  if (it->second.quarantines > 0) context.act(Quarantine{.worker = id, .until = {}, .reason = {}});
  leave_away(context.state, id);
  context.state.health.erase(it);
  touch(context.state, id);
}

void quarantine(Context& context, const WorkerId& id, Fault fault, const std::string& reason) {
  State& state = context.state;
  const QuarantineConfig& config = state.config.quarantine;
  Health& health = health_of(state, id);
  health.faults = 0;
  health.tasks.clear();
  health.fault = fault;
  health.reason = reason;
  health.until = state.now + doubled(config.first, health.quarantines++, config.longest);
  touch(state, id);
  context.act(Quarantine{.worker = id, .until = health.until, .reason = reason});
  check_pool(context, id);
}

void record_fault(Context& context, const WorkerId& id, Fault fault, const std::string& reason,
                  const std::optional<WorkId>& work) {
  Health& health = health_of(context.state, id);
  health.fault = fault;
  health.reason = reason;
  // While it is in quarantine, what it held before may still go wrong: that was counted.
  if (in_quarantine(context.state, id)) return;
  // One broken prompt has many members and many tries: it must not look like a broken worker.
  if (work && !health.tasks.insert(task_key(*work)).second) return;
  // After a quarantine one is enough (law 7.3).
  const bool proving = health.quarantines > 0;
  ++health.faults;
  touch(context.state, id);
  if (health.faults < context.config().quarantine.faults && !proving) return;
  quarantine(context, id, fault, reason);
}

void record_leaving(Context& context, const WorkerId& id) {
  State& state = context.state;
  health_of(state, id).left = state.now;
  // Names come and go with spot machines: one that has been away for long is nobody's hope, and
  // nothing is held against it any more.
  while (!state.away.empty()) {
    const auto longest_away = state.away.begin();
    const auto health = state.health.find(longest_away->second);
    if (is_remembered(state, health->second)) break;
    state.health.erase(health);
    state.away.erase(longest_away);
  }
}

void record_outcome(Context& context, const WorkerId& id, const WorkId& work, Outcome outcome,
                    const std::string& reason) {
  State& state = context.state;
  const Post post = post_of(state.workers.at(id));
  // The good answers of environments say nothing about verifiers, nor those of a pool with work of
  // its own about the others.
  Breaker& breaker =
      state.breakers[{post.role, {post.policy, is_bound(state, post) ? post.pool : std::string()}}];
  // A member's latest attempt stands for it, or the tries of a few broken prompts would fill it.
  breaker.window.add({id, work, outcome});
  breaker.window.keep(window_of(state, post));
  // A good answer cannot push a share of failures over its bound: nothing to check.
  if (has_sample(outcome)) return record_good(context, id);
  if (!reason.empty()) breaker.last_reason[outcome] = reason;
  // Alone it has nobody to be compared with: whether its environments fail or all do cannot be told
  // apart, and only the breaker judges (law 7.2).
  if (has_peers(state, id, post)) {
    record_fault(context, id,
                 outcome == Outcome::kVerifierFailed ? Fault::kVerifier : Fault::kEnvironment,
                 reason, work);
  }
  check_window(context, breaker, outcome, post);
}

}  // namespace tailrace::scheduler
