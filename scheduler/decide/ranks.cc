#include "scheduler/decide/ranks.h"

#include <algorithm>

#include "core/base/random.h"
#include "scheduler/decide/batches.h"

namespace tailrace::scheduler {
namespace {

// Their part of a batch is void: they got it as ranks of an earlier meeting.
void part(Policy& policy) {
  policy.formation = 0;
  forget_told(policy);
}

}  // namespace

bool is_rank(const Worker& worker) { return worker.role == Role::kTrainer && worker.rank > 0; }

void join_rank(State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  // A run that is continued with fewer of them has no use for the others.
  if (policy == state.policies.end() || worker.rank >= state.config.trainer_ranks) return;
  policy->second.ranks[worker.rank] = id;
  part(policy->second);
}

void leave_rank(State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  if (policy == state.policies.end()) return;
  const auto rank = policy->second.ranks.find(worker.rank);
  // Another worker may have come for it.
  if (rank == policy->second.ranks.end() || rank->second != id) return;
  policy->second.ranks.erase(rank);
  part(policy->second);
  // One that it has displaced, and that is still there.
  for (const auto& [other_id, other] : state.workers) {
    if (other_id == id || !other.connected || !is_rank(other)) continue;
    if (other.policy == worker.policy && other.rank == worker.rank)
      return join_rank(state, other_id, other);
  }
}

void end_stage_of_ranks(Policy& policy) {
  if (policy.published < 0) part(policy);
}

void form_ranks(Context& context, PolicyId policy_id, Policy& policy) {
  const State& state = context.state;
  const int32_t size = context.config().trainer_ranks;
  if (size == 1 || policy.formation != 0 || std::ssize(policy.ranks) != size - 1) return;
  // Rank 0 first has weights to go on from, and has said which, or that it trains a stage.
  const Worker* trainer = trainer_of(state, policy);
  const bool is_in_stage = policy.published < 0;
  if (trainer == nullptr || (is_in_stage && policy.stage.number == 0) || !policy.greeted ||
      policy.trainer_incarnation != trainer->incarnation)
    return;
  // Sessions are given once in the life of a scheduler, and processes once; those of a stage meet
  // anew behind it.
  uint64_t formation = mix({trainer->incarnation, trainer->session});
  if (is_in_stage) formation = mix({formation, 1});
  for (const auto& [rank, id] : policy.ranks) {
    const Worker& worker = state.workers.at(id);
    formation = mix({formation, worker.incarnation, worker.session});
  }
  policy.formation = std::max<uint64_t>(formation, 1);
  const auto tell = [&](const WorkerId& id, int32_t rank) {
    context.tell(
        id, wire::FormRanks{
                .policy = policy_id, .formation = policy.formation, .rank = rank, .size = size});
  };
  tell(policy.trainer, 0);
  for (const auto& [rank, id] : policy.ranks) tell(id, rank);
}

}  // namespace tailrace::scheduler
