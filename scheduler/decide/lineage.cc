#include "scheduler/decide/lineage.h"

#include <algorithm>
#include <iterator>

#include "scheduler/decide/breaker.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/rounds.h"

namespace tailrace::scheduler {
namespace {

int64_t newest_version(const Task& task) {
  int64_t newest = task.weight_floor;
  for (const Member& member : task.members) {
    newest = std::max({newest, member.granted_version, member.max_version});
  }
  return newest;
}

// Its end, if it has one, rests on weights that are abandoned.
void withdraw_end(Context& context, Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  if (task.place != Place::kDone) return;
  --policy.domains[static_cast<size_t>(id.domain)].ended_as(task.end);
  context.act(TaskWithdrawn{id});
}

// A group that keeps its samples but loses its place in a batch: complete, so it is ready again.
void return_to_ready(Context& context, Policy& policy, const TaskId& id) {
  withdraw_end(context, policy, id);
  policy.tasks.at(id).place = Place::kReady;
  policy.domains[static_cast<size_t>(id.domain)].ready.push_back(id);
}

// Versions >= `from` are abandoned, and `weights` takes the place of `from`.
void fork(Context& context, Policy& policy, int64_t from, Weights weights) {
  policy.lineage.erase(policy.lineage.lower_bound(from), policy.lineage.end());
  policy.lineage[from] = std::move(weights);
  policy.frontier = from;
  ++policy.forks;
  policy.rounds.clear();
  if (policy.evaluated >= from) {
    if (policy.evaluation && policy.evaluation->version >= from) drop_evaluation(context, policy);
    policy.evaluated = from - 1;
  }
  for (Domain& domain : policy.domains) {
    std::erase_if(domain.ready,
                  [&](const TaskId& id) { return newest_version(policy.tasks.at(id)) >= from; });
  }
  std::vector<TaskId> abandoned, kept;
  for (const auto& [id, task] : policy.tasks) {
    if (task.place == Place::kQueued) continue;
    // A group that still runs has lost its round, whatever it was sampled from.
    const bool cut_off = task.place == Place::kDone && task.end == TaskEnd::kUnreached;
    const bool taints = newest_version(task) >= from || task.place == Place::kRunning || cut_off;
    const bool in_batch = task.place == Place::kHandedOver ||
                          (task.place == Place::kDone && task.end == TaskEnd::kTrained);
    if (taints) abandoned.push_back(id);
    if (!taints && in_batch && task.step > from) kept.push_back(id);
  }
  policy.batches.erase(policy.batches.upper_bound(from), policy.batches.end());
  for (const TaskId& id : kept) return_to_ready(context, policy, id);
  for (const TaskId& id : abandoned) {
    withdraw_end(context, policy, id);
    relaunch(context, policy, id);
  }
}

// The groups of a batch are consumed.
void finish_batch(Context& context, Policy& policy, int64_t step) {
  const auto batch = policy.batches.find(step);
  if (batch == policy.batches.end()) return;
  for (const TaskId& id : batch->second.tasks) {
    if (policy.tasks.at(id).place == Place::kHandedOver)
      end_task(context, policy, id, TaskEnd::kTrained, step);
  }
}

}  // namespace

void on_trainer_lost(Policy& policy) {
  policy.wanted.reset();
  policy.handed = false;
}

void on_published(Context& context, const Published& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it == context.state.policies.end() || event.version < 0) return;
  Policy& policy = it->second;
  const bool first = policy.published < 0;
  if (!first && event.version <= policy.published) return;  // said before
  if (!first && (event.version != policy.published + 1 || !policy.batches.contains(event.version)))
    return;

  policy.published = event.version;
  policy.wanted.reset();
  policy.handed = false;
  finish_batch(context, policy, event.version);
  Weights weights{event.digest, event.manifest};
  if (event.version > policy.frontier) {
    policy.frontier = event.version;
    policy.lineage[event.version] = std::move(weights);
  } else if (!on_lineage(policy, event.version, event.digest)) {
    fork(context, policy, event.version, std::move(weights));
  } else {
    policy.lineage[event.version] =
        std::move(weights);  // the same weights, perhaps in another file
  }
}

void on_durable(Context& context, const Durable& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it == context.state.policies.end()) return;
  Policy& policy = it->second;
  if (event.version <= policy.durable || event.version > policy.published) return;
  policy.durable = event.version;
  Release release;
  for (auto task = policy.tasks.begin(); task != policy.tasks.end();) {
    if (task->second.place != Place::kDone || task->second.step > event.version) {
      ++task;
      continue;
    }
    std::ranges::copy(bodies_of(Lane::kTrain, task->first, task->second),
                      std::back_inserter(release.bodies));
    task = policy.tasks.erase(task);
  }
  policy.batches.erase(policy.batches.begin(), policy.batches.upper_bound(event.version));
  policy.lineage.erase(policy.lineage.begin(), policy.lineage.lower_bound(event.version));
  if (!release.bodies.empty()) context.act(std::move(release));
}

void on_rolled_back(Context& context, const RolledBack& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it == context.state.policies.end()) return;
  Policy& policy = it->second;
  const bool said_before = event.incarnation != 0 && event.incarnation == policy.trainer &&
                           event.version < policy.published;
  if (said_before) return;
  policy.trainer = event.incarnation;
  if (policy.published < 0) {
    if (event.version >= 0)
      on_published(context, {event.policy, event.version, event.digest, event.manifest});
    return;
  }
  // Its last publication did not reach us before it died; the checkpoint proves the step.
  if (event.version == policy.published + 1 && policy.batches.contains(event.version)) {
    return on_published(context, {event.policy, event.version, event.digest, event.manifest});
  }
  if (event.version == policy.published && on_lineage(policy, event.version, event.digest)) return;
  if (event.version < 0) {
    return halt(context,
                fmt::format("the trainer has no checkpoint, but the run is at version {}. Put the "
                            "checkpoints back, or start a new run directory",
                            policy.published));
  }
  if (event.version > policy.published || !policy.lineage.contains(event.version)) {
    return halt(
        context,
        fmt::format(
            "the trainer holds version {}, but the run is at version {} and can go back to {} at "
            "most: what was trained since is no longer kept. Put the newest checkpoint back, or "
            "start a new run directory",
            event.version, policy.published, policy.lineage.begin()->first));
  }
  on_trainer_lost(policy);
  policy.published = event.version;
  context.state.end.reset();
  if (!on_lineage(policy, event.version, event.digest)) {
    fork(context, policy, event.version, {event.digest, event.manifest});
  }
}

}  // namespace tailrace::scheduler
