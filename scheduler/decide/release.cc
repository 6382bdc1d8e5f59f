#include "scheduler/decide/release.h"

#include <algorithm>

namespace tailrace::scheduler {
namespace {

// Without what samples name. What a worker is asked for next is the frontier, or what is evaluated.
int64_t needed_from(const State& state, PolicyId id, const Policy& policy) {
  int64_t from = policy.frontier - state.config.keep_weights + 1;
  if (policy.evaluation) from = std::min(from, policy.evaluation->version);
  for (const auto& [name, worker] : state.workers) {
    if (worker.role != Role::kRollout || worker.policy != id) continue;
    if (worker.held >= 0) from = std::min(from, worker.held);
    if (worker.install) from = std::min(from, worker.install->version);
  }
  return from;
}

}  // namespace

void release_weights(Context& context, PolicyId id) {
  const State& state = context.state;
  Policy& policy = context.state.policies.at(id);
  int64_t from = needed_from(state, id, policy);
  if (from <= policy.released) return;
  if (state.config.keep_sampled) from = std::min(from, oldest_sampled(policy).value_or(from));
  policy.released = std::max(policy.released, from);
}

void tell_released(Context& context, PolicyId id, Policy& policy) {
  const Worker* trainer = trainer_of(context.state, policy);
  if (policy.told_released >= policy.released || trainer == nullptr) return;
  // A trainer that trains versions again may publish one with other bytes in the next moment, and
  // it would be let go by a word that was meant for the one before. So may one that has not said
  // what it holds.
  if (!at_frontier(policy) || !policy.greeted || policy.trainer_incarnation != trainer->incarnation)
    return;
  policy.told_released = policy.released;
  context.tell(policy.trainer, *trainer,
               ReleaseWeights{.worker = {}, .session = 0, .policy = id, .below = policy.released});
}

}  // namespace tailrace::scheduler
