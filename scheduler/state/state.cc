#include "scheduler/state/state.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace tailrace::scheduler {

std::string_view name(TaskEnd end) {
  switch (end) {
    case TaskEnd::kTrained:
      return "trained";
    case TaskEnd::kFiltered:
      return "filtered";
    case TaskEnd::kFailed:
      return "failed";
    case TaskEnd::kStale:
      return "stale";
    case TaskEnd::kUnreached:
      return "unreached";
  }
  return "unknown";
}

State::State(Config run, int num_policies) : config(std::move(run)) {
  for (PolicyId id = 0; id < num_policies; ++id) policies[id].domains.resize(config.domains.size());
}

const Task* find_task(const State& state, Lane lane, const MemberId& member) {
  const auto policy = state.policies.find(member.policy);
  if (policy == state.policies.end()) return nullptr;
  if (lane == Lane::kEval && !policy->second.evaluation) return nullptr;
  const auto& tasks = lane == Lane::kEval ? policy->second.evaluation->tasks : policy->second.tasks;
  const auto task = tasks.find(task_of(member));
  if (task == tasks.end() || task->second.launch != member.launch) return nullptr;
  return member.member < std::ssize(task->second.members) ? &task->second : nullptr;
}

Task* find_task(State& state, Lane lane, const MemberId& member) {
  return const_cast<Task*>(find_task(static_cast<const State&>(state), lane, member));
}

Member& member_of(State& state, const WorkId& work) {
  return find_task(state, work.lane, work.member)->members[static_cast<size_t>(work.member.member)];
}

bool settled(const Member& member) {
  return member.phase == Phase::kRewarded || member.phase == Phase::kFailed;
}

bool evaluating(const Policy& policy) {
  return policy.evaluation && policy.evaluation->open_members > 0;
}

bool on_lineage(const Policy& policy, int64_t version, const Digest& digest) {
  const auto it = policy.lineage.find(version);
  return it != policy.lineage.end() && it->second.digest == digest;
}

bool expects_result(const State& state, const WorkerId& worker, Lane lane, const LeaseId& lease) {
  const auto it = state.leases.find({lane, lease.member});
  return it != state.leases.end() && it->second.kind == LeaseKind::kGenerate &&
         it->second.attempt == lease.attempt && it->second.worker == worker;
}

bool at_frontier(const Policy& policy) {
  return policy.frontier >= 0 && policy.published == policy.frontier;
}

std::optional<Time> next_deadline(const State& state) {
  std::optional<Time> next;
  const auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  for (const auto& [work, lease] : state.leases) consider(lease.deadline);
  for (const auto& [id, worker] : state.workers) {
    if (worker.connected && worker.phase == WorkerPhase::kInstalling)
      consider(worker.install_deadline);
  }
  return next;
}

std::vector<BodyId> bodies_of(Lane lane, const TaskId& id, const Task& task) {
  std::vector<BodyId> bodies;
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    const Member& member = task.members[static_cast<size_t>(i)];
    if (member.has_body) bodies.push_back({lane, {member_id(id, task.launch, i), member.attempt}});
  }
  return bodies;
}

std::vector<BodyId> held_bodies(const State& state) {
  std::vector<BodyId> bodies;
  const auto add = [&](Lane lane, const std::map<TaskId, Task>& tasks) {
    for (const auto& [id, task] : tasks)
      std::ranges::copy(bodies_of(lane, id, task), std::back_inserter(bodies));
  };
  for (const auto& [id, policy] : state.policies) {
    add(Lane::kTrain, policy.tasks);
    if (policy.evaluation) add(Lane::kEval, policy.evaluation->tasks);
  }
  return bodies;
}

}  // namespace tailrace::scheduler
