#include "scheduler/service/first_attempts.h"

#include <algorithm>

#include <fmt/format.h>

namespace tailrace::scheduler {

std::string FirstAttempts::look(const State& state, const AttemptResult& result, Time now) {
  const BreakerConfig& breaker = state.config.breaker;
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
  if (tasks_.size() < 2 && now - first_ < kOneTask) return {};
  // Those that still play may do better: few quick failures say nothing about them.
  if (2 * num_failed_ <= static_cast<int64_t>(state.leases.size())) return {};
  const auto num_workers = std::ranges::count_if(
      state.workers, [](const auto& entry) { return entry.second.role == Role::kRollout; });
  if (2 * std::ssize(workers_) <= num_workers) return {};
  is_over_ = true;
  return fmt::format("all of the first {} attempts ended as {}; the last one: {}", num_failed_,
                     name_of(result.outcome), result.reason);
}

}  // namespace tailrace::scheduler
