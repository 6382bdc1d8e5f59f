#include "scheduler/decide/release.h"

#include <algorithm>

namespace tailrace::scheduler {
namespace {

int64_t evaluated_version(const Policy& policy) {
  return policy.evaluation ? policy.evaluation->version : -1;
}

// But for what is evaluated: it may lie far behind, and alone it keeps its payload.
int64_t may_be_fetched_from(const State& state, PolicyId id, const Policy& policy) {
  int64_t from = policy.frontier - state.config.keep_weights + 1;
  for (const auto& [name, worker] : state.workers) {
    if (worker.role == Role::kRollout && worker.policy == id && worker.install &&
        worker.install->version != evaluated_version(policy))
      from = std::min(from, worker.install->version);
  }
  return from;
}

int64_t needed_from(const State& state, PolicyId id, const Policy& policy, int64_t from) {
  if (policy.evaluation) from = std::min(from, policy.evaluation->version);
  for (const auto& [name, worker] : state.workers)
    if (worker.role == Role::kRollout && worker.policy == id && worker.held >= 0)
      from = std::min(from, worker.held);
  return from;
}

}  // namespace

void release_weights(Context& context, PolicyId id) {
  const State& state = context.state;
  Policy& policy = context.state.policies.at(id);
  int64_t from = may_be_fetched_from(state, id, policy);
  policy.fetched_from = std::max(policy.fetched_from, from);
  from = needed_from(state, id, policy, from);
  if (from <= policy.released) return;
  if (state.config.keep_sampled) from = std::min(from, oldest_sampled(policy).value_or(from));
  policy.released = std::max(policy.released, from);
}

void tell_released(Context& context, PolicyId id, Policy& policy) {
  if (policy.told_released >= policy.released && policy.told_fetched_from >= policy.fetched_from)
    return;
  const Worker* trainer = trainer_of(context.state, policy);
  if (trainer == nullptr) return;
  // A trainer that trains versions again may publish one with other bytes in the next moment, and
  // it would be let go by a word that was meant for the one before. So may one that has not said
  // what it holds.
  if (!at_frontier(policy) || !policy.greeted || policy.trainer_incarnation != trainer->incarnation)
    return;
  policy.told_released = policy.released;
  policy.told_fetched_from = policy.fetched_from;
  context.tell(policy.trainer, *trainer,
               wire::ReleaseWeights{.policy = id,
                                    .below = policy.released,
                                    .fetched_from = policy.fetched_from,
                                    .evaluated = evaluated_version(policy)});
}

}  // namespace tailrace::scheduler
