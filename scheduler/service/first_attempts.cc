#include "scheduler/service/first_attempts.h"

#include <algorithm>

#include <fmt/format.h>

namespace tailrace::scheduler {

std::string FirstAttempts::look(const State& state, const AttemptResult& result, Time now) {
  const BreakerConfig& breaker = state.config.breaker;
  // One sample proves that attempts can work. From then on the breaker judges (law 7.6), which
  // waits for a whole window.
  if (is_over_ || has_sample(result.outcome)) {
    is_over_ = true;
    return {};
  }
  if (result.outcome != Outcome::kEnvFailed) return {};
  if (num_failed_++ == 0) first_ = now;
  tasks_.emplace(result.lane, task_of(result.lease.member));
  workers_.insert(result.worker);
  // Where no share of failures ends a run, neither do the first ones.
  if (breaker.window == 0 || breaker.share >= 1 || num_failed_ < kEnough) return {};
  const bool is_long = now - first_ >= kLong;
  if (tasks_.size() < 2 && !is_long) return {};
  // Attempts that still play may do better: few quick failures say nothing about them.
  if (2 * num_failed_ <= static_cast<int64_t>(state.leases.size())) return {};
  if (!are_enough_workers(state, is_long)) return {};
  is_over_ = true;
  return fmt::format("all of the first {} attempts ended as {}; the last one: {}", num_failed_,
                     name_of(result.outcome), result.reason);
}

// One bad worker says nothing about the others. A large run has workers that are still starting, or
// for which there is no work: they say nothing either, but for a while they may.
bool FirstAttempts::are_enough_workers(const State& state, bool is_long) const {
  int64_t num_all = 0, num_that_play = 0;
  for (const auto& [name, worker] : state.workers) {
    if (worker.role != Role::kRollout) continue;
    ++num_all;
    num_that_play += worker.leased > 0 && !workers_.contains(name);
  }
  const int64_t num_failing = std::ssize(workers_);
  if (!is_long) return 2 * num_failing > num_all;
  return num_failing > num_that_play && num_failing >= std::min<int64_t>(2, num_all);
}

}  // namespace tailrace::scheduler
