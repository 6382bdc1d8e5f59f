#include "scheduler/state/state.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tailrace::scheduler {

State::State(Config run, int num_policies) : config(std::move(run)) {
  for (PolicyId id = 0; id < num_policies; ++id)
    policies[id].datasets.resize(config.datasets.size());
}

int64_t count_told_items(const Policy& policy) {
  const auto batch = policy.batches.find(policy.published + 1);
  if (batch == policy.batches.end()) return 0;
  int64_t count = 0;
  const std::vector<TaskId>& tasks = batch->second.tasks;
  for (int64_t k = 0; k < std::min(policy.told, std::ssize(tasks)); ++k) {
    const auto task = policy.tasks.find(tasks[static_cast<size_t>(k)]);
    if (task == policy.tasks.end()) continue;
    count += std::ranges::count_if(task->second.members,
                                   [](const Member& member) { return member.reward.has_value(); });
  }
  return count;
}

const Task* find_task(const State& state, Lane lane, const MemberId& member) {
  const auto policy = state.policies.find(member.policy);
  if (policy == state.policies.end()) return nullptr;
  if (lane == Lane::kEval && !policy->second.evaluation) return nullptr;
  const auto& tasks = lane == Lane::kEval ? policy->second.evaluation->tasks : policy->second.tasks;
  const auto task = tasks.find(task_of(member));
  // The launch is part of the name: what is said of an older one finds nothing (law 6.4).
  if (task == tasks.end() || task->second.launch != member.launch) return nullptr;
  return member.member < std::ssize(task->second.members) ? &task->second : nullptr;
}

Task* find_task(State& state, Lane lane, const MemberId& member) {
  return const_cast<Task*>(find_task(static_cast<const State&>(state), lane, member));
}

Member& member_of(State& state, const WorkId& work) {
  // Not checked for null: leases and queues name living members only (law 15.3).
  return find_task(state, work.lane, work.member)->members[static_cast<size_t>(work.member.member)];
}

Dataset& dataset_of(Policy& policy, const TaskId& id) {
  return policy.datasets[static_cast<size_t>(id.dataset)];
}

int64_t row_of(const State& state, const TaskId& id) {
  return tailrace::row_of(id.prompt,
                          state.config.datasets[static_cast<size_t>(id.dataset)].prompts_per_epoch);
}

bool is_broken(const State& state, Lane lane, const TaskId& id) {
  const BrokenTasks& broken =
      state.policies.at(id.policy).datasets[static_cast<size_t>(id.dataset)].broken;
  return lane == Lane::kEval ? broken.held_out.contains(id.prompt)
                             : broken.rows.contains(row_of(state, id));
}

bool all_broken(const DatasetConfig& config, const Dataset& dataset) {
  return config.prompts_per_epoch > 0 &&
         std::ssize(dataset.broken.rows) >= config.prompts_per_epoch;
}

bool settled(const Member& member) {
  return member.phase == Phase::kRewarded || member.phase == Phase::kFailed ||
         member.phase == Phase::kSurplus;
}

std::optional<int64_t> oldest_version(const Task& task) {
  std::optional<int64_t> oldest;
  for (const Member& member : task.members) {
    // Law 4.1: a member that waits will be granted on newer weights, and the other two bring no
    // sample to the step.
    if (member.phase == Phase::kWaiting || member.phase == Phase::kFailed ||
        member.phase == Phase::kSurplus)
      continue;
    const int64_t version =
        member.phase == Phase::kRunning ? member.granted_version : member.min_version;
    oldest = oldest ? std::min(*oldest, version) : version;
  }
  return oldest;
}

std::optional<int64_t> oldest_sampled(const Policy& policy) {
  std::optional<int64_t> oldest;
  const auto consider = [&](int64_t version) {
    oldest = std::min(oldest.value_or(version), version);
  };
  const auto look = [&](const HashedMap<TaskId, Task>& tasks) {
    for (const auto& [id, task] : tasks) {
      for (const Member& member : task.members) {
        if (member.has_body) consider(member.min_version);
        if (member.prefix) consider(member.prefix->min_version);
        if (member.phase == Phase::kRunning) consider(member.granted_version);
      }
    }
  };
  look(policy.tasks);
  if (policy.evaluation) look(policy.evaluation->tasks);
  return oldest;
}

bool tried_before(const Member& member) {
  return member.env_failures + member.verifier_failures + member.losses > 0;
}

bool is_avoided(const State& state, const Member& member, const WorkerId& id) {
  const auto rest = member.rests.find(id);
  return rest != member.rests.end() && rest->second > state.now;
}

int64_t count_open(const Evaluation& evaluation) {
  int64_t open = 0;
  for (const auto& [id, task] : evaluation.tasks)
    open += std::ranges::count(task.members, false, settled);
  return open;
}

int64_t num_open(const Policy& policy) { return policy.evaluation ? policy.evaluation->open : 0; }

bool evaluating(const Policy& policy) { return num_open(policy) > 0; }

bool waits_for_report(const Config& config, const Policy& policy) {
  if (!policy.evaluation) return false;
  // Law 10.1: the step that starts from a version which is due waits for the report of the one
  // before, so that no version is left out.
  return config.eval.holds_training ||
         (policy.evaluation->version < policy.frontier && config.evaluates(policy.frontier));
}

bool is_past(const Policy& policy, const Worker& worker, int64_t version) {
  return worker.held > version && on_lineage(policy, worker.held, worker.digest);
}

int64_t wanted_version(const State& state, const Policy& policy, const WorkerId& id,
                       const Worker& worker) {
  if (!policy.evaluation || policy.evaluation->version >= policy.frontier) return policy.frontier;
  const int64_t evaluated = policy.evaluation->version;
  // It stays until its own held-out samples have ended, which run on exactly this version (law
  // 10.1).
  if (state.leases.holds_held_out(id)) return evaluated;
  // The entry without a name is of held-out members that may go to any pool (law 1.5).
  const bool waits = state.held_out.contains({worker.policy, worker.site.pool}) ||
                     state.held_out.contains({worker.policy, ""});
  const bool comes =
      !is_past(policy, worker, evaluated) || policy.evaluation->recalled.contains(id);
  return waits && comes ? evaluated : policy.frontier;
}

std::optional<int64_t> next_version(const State& state, const Policy& policy, const WorkerId& id,
                                    const Worker& worker) {
  const int64_t wanted = wanted_version(state, policy, id, worker);
  // Also of the wanted number: after a fork other weights carry it.
  if (worker.version != wanted || !on_lineage(policy, worker.version, worker.digest)) return wanted;
  // It is staged while this one is evaluated.
  if (policy.frontier > wanted) return policy.frontier;
  return std::nullopt;
}

bool is_asked(const Worker& worker) {
  return worker.install && worker.install->phase != Install::Phase::kStaged;
}

bool on_lineage(const Policy& policy, int64_t version, const Digest& digest) {
  const auto it = policy.lineage.find(version);
  // A number alone says little: after a fork other weights carry it.
  return it != policy.lineage.end() && it->second.digest == digest;
}

bool is_master(const Policy& policy, int64_t version, const Digest& master) {
  const auto it = policy.lineage.find(version);
  return it != policy.lineage.end() && it->second.master == master;
}

const Policy* policy_of_trainer(const State& state, PolicyId id, const WorkerId& worker) {
  const auto it = state.policies.find(id);
  return it != state.policies.end() && it->second.trainer == worker ? &it->second : nullptr;
}

bool comes_next(const Policy& policy, int64_t version) {
  const auto batch = policy.batches.find(version);
  return version == policy.published + 1 && batch != policy.batches.end() && batch->second.whole;
}

bool is_beyond(const Policy& policy, int64_t checkpoint) {
  // Version 0 is saved before anybody hears of it.
  const bool first = policy.published < 0 && checkpoint == 0;
  return checkpoint > policy.published && !first && !comes_next(policy, checkpoint);
}

StepStart step_start_at(const Policy& policy, Time now) {
  StepStart start{.time = now, .attempts = policy.attempts, .filtered = {}};
  for (const Dataset& dataset : policy.datasets) {
    start.filtered.push_back(dataset.ended_as(TaskEnd::kFiltered));
    start.failed += dataset.ended_as(TaskEnd::kFailed);
    start.stale += dataset.ended_as(TaskEnd::kStale);
  }
  return start;
}

bool at_frontier(const Policy& policy) {
  return policy.frontier >= 0 && policy.published == policy.frontier;
}

const Worker* trainer_of(const State& state, const Policy& policy) {
  const auto it = state.workers.find(policy.trainer);
  return it != state.workers.end() && it->second.connected ? &it->second : nullptr;
}

bool can_train(const State& state, const Policy& policy) {
  const auto is_fit = [&](const WorkerId& id) {
    const auto worker = state.workers.find(id);
    return worker != state.workers.end() && worker->second.connected && !in_quarantine(state, id);
  };
  // Law 8.7: a step that begins before all ranks have met would wait for the one that is not there.
  if (state.config.trainer_ranks > 1 && policy.formation == 0) return false;
  return is_fit(policy.trainer) &&
         std::ranges::all_of(policy.ranks, [&](const auto& rank) { return is_fit(rank.second); });
}

bool saved(const Policy& policy) {
  return policy.published < 0 || policy.durable >= policy.published;
}

const Health* find_health(const State& state, const WorkerId& worker) {
  const auto it = state.health.find(worker);
  return it == state.health.end() ? nullptr : &it->second;
}

bool is_resting(const State& state, const Worker& worker) {
  return worker.rest && worker.rest->until > state.now;
}

bool in_quarantine(const State& state, const Health* health) {
  return health != nullptr && health->until > state.now;
}
bool in_quarantine(const State& state, const WorkerId& worker) {
  return in_quarantine(state, find_health(state, worker));
}

bool on_trial(const State& state, const Health* health) {
  return health != nullptr && health->quarantines > 0 && health->until <= state.now;
}
bool on_trial(const State& state, const WorkerId& worker) {
  return on_trial(state, find_health(state, worker));
}

bool has_faults(const Health* health) {
  return health != nullptr && (health->faults > 0 || health->quarantines > 0);
}
bool has_faults(const State& state, const WorkerId& worker) {
  return has_faults(find_health(state, worker));
}

Time doubled(Time first, int64_t times, Time longest) {
  Time time = std::min(first, longest);
  // Step by step: no number of times can overflow.
  for (; times > 0 && time < longest; --times) time = std::min(2 * time, longest);
  return time;
}

int64_t usable_slots(const State& state, const Health* health, const Worker& worker) {
  if (in_quarantine(state, health)) return 0;
  // A worker that still fails takes one sample with it, not all that it has slots for (law 7.3).
  return on_trial(state, health) ? 1 : worker.slots;
}
int64_t usable_slots(const State& state, const WorkerId& id, const Worker& worker) {
  return usable_slots(state, find_health(state, id), worker);
}

bool holds_body(const State& state, const BodyId& id) {
  const MemberId& member = id.lease.member;
  const Task* task = find_task(state, id.lane, member);
  if (task == nullptr) return false;
  const Member& found = task->members[static_cast<size_t>(member.member)];
  if (id.turns > 0)
    return found.prefix && found.prefix->attempt == id.lease.attempt &&
           found.prefix->turns == id.turns;
  // One body of a member counts, that of its newest attempt.
  return found.has_body && found.attempt == id.lease.attempt;
}

std::optional<Time> next_deadline(const State& state) {
  // Nothing is expired any more then, so a deadline that passed would be due for ever (law 14.3).
  if (!state.halted.empty() || state.ended) return std::nullopt;
  std::optional<Time> next;
  const auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  if (!state.leases.empty()) consider(state.leases.next_deadline());
  if (!state.rest_ends.empty()) consider(*state.rest_ends.begin());
  const Index& index = state.index;
  if (!index.deadlines().empty()) consider(index.deadlines().begin()->first);
  // When a quarantine or a rest ends a worker can have work again; one that is not here is looked
  // at when it comes.
  if (!index.wakes().empty()) consider(index.wakes().begin()->first);
  // Once there is an end, the stop has had its time.
  if (state.end) {
    consider(state.end_deadline);
  } else if (state.stopping) {
    consider(state.stop_deadline);
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

BodyId prefix_of(const WorkId& work, const Prefix& prefix) {
  return {work.lane, {work.member, prefix.attempt}, prefix.turns};
}

// Bodies of done tasks are held as well, until the oldest checkpoint covers their step: a rollback
// hands their batch over once more.
std::vector<BodyId> held_bodies(const State& state) {
  std::vector<BodyId> bodies;
  const auto add = [&](Lane lane, const HashedMap<TaskId, Task>& tasks) {
    for (const auto& [id, task] : tasks) {
      std::ranges::copy(bodies_of(lane, id, task), std::back_inserter(bodies));
      for (int32_t i = 0; i < std::ssize(task.members); ++i) {
        const auto& prefix = task.members[static_cast<size_t>(i)].prefix;
        if (prefix) bodies.push_back(prefix_of({lane, member_id(id, task.launch, i)}, *prefix));
      }
    }
  };
  for (const auto& [id, policy] : state.policies) {
    add(Lane::kTrain, policy.tasks);
    if (policy.evaluation) add(Lane::kEval, policy.evaluation->tasks);
  }
  return bodies;
}

}  // namespace tailrace::scheduler
