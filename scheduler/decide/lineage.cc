#include "scheduler/decide/lineage.h"

#include <algorithm>

#include <fmt/format.h>

#include "scheduler/decide/batches.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/health.h"
#include "scheduler/decide/ranks.h"
#include "scheduler/decide/release.h"
#include "scheduler/decide/rounds.h"
#include "scheduler/state/credit.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

int64_t newest_version(const Task& task) {
  int64_t newest = task.weight_floor;
  for (const Member& member : task.members) {
    // A grant counts like a token: at hand may be an answer that was sampled by those weights.
    newest = std::max({newest, member.granted_version, member.max_version});
  }
  return newest;
}

// A group that keeps its samples but loses its place in a batch: complete, so it is ready again.
void return_to_ready(Context& context, Policy& policy, const TaskId& id) {
  withdraw_end(context, policy, id);
  policy.tasks.at(id).place = Place::kReady;
  policy.datasets[static_cast<size_t>(id.dataset)].ready.push_back(id);
}

// Groups of several batches may be ready again, some of which never held credit: what is beyond it
// waits for a round, the last ones first.
void park_beyond_credit(const Config& config, Policy& policy) {
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    for (; std::ssize(dataset.ready) > credit(config, i); dataset.ready.pop_back()) {
      Task& task = policy.tasks.at(dataset.ready.back());
      task.place = Place::kParked;
      task.round = 0;
      dataset.parked.push_front(dataset.ready.back());
    }
  }
}

// As far as workers know these very weights already: what is published may have been so before, in
// another lineage.
VersionState state_at_workers(const State& state, PolicyId policy, int64_t version,
                              const Digest& digest) {
  auto reached = VersionState::kOffered;
  for (const auto& [id, worker] : state.workers) {
    if (worker.role != Role::kRollout || worker.policy != policy) continue;
    if (worker.version == version && worker.digest == digest) return VersionState::kCommitted;
    const std::optional<Install>& install = worker.install;
    if (!install || install->version != version || install->digest != digest) continue;
    if (install->phase == Install::Phase::kSwitching) return VersionState::kCommitted;
    if (install->phase == Install::Phase::kStaged) reached = VersionState::kStaged;
  }
  return reached;
}

// The weights of a trainer's message, with what the lineage knows of that version: the batch
// that led to it may have been let go since.
Weights weights_of(const Policy& policy, const Published& said) {
  Weights weights{said.master, said.digest, said.manifest};
  const auto batch = policy.batches.find(said.version);
  const auto known = policy.lineage.find(said.version);
  if (batch != policy.batches.end())
    weights.used = batch->second.used;
  else if (known != policy.lineage.end())
    weights.used = known->second.used;
  return weights;
}

// Makes the weights of this version known from now on.
void offer(State& state, PolicyId id, int64_t version, Weights weights) {
  weights.state = state_at_workers(state, id, version, weights.digest);
  state.policies.at(id).lineage[version] = std::move(weights);
  make_index(state);
}

// The weights are those of the lineage. They may lie in another file, or be published otherwise
// than before.
void offer_again(State& state, PolicyId id, int64_t version, Weights weights) {
  Weights& known = state.policies.at(id).lineage.at(version);
  if (known.digest != weights.digest) return offer(state, id, version, std::move(weights));
  if (!weights.manifest.empty()) known.manifest = std::move(weights.manifest);
}

// Versions >= `from` are abandoned, and `weights` takes the place of `from`.
void fork(Context& context, PolicyId policy_id, int64_t from, Weights weights) {
  Policy& policy = context.state.policies.at(policy_id);
  policy.lineage.erase(policy.lineage.lower_bound(from), policy.lineage.end());
  policy.frontier = from;
  // It is published anew, and so is what comes after it.
  policy.released = std::min(policy.released, from);
  policy.told_released = std::min(policy.told_released, from);
  policy.fetched_from = std::min(policy.fetched_from, from);
  policy.told_fetched_from = std::min(policy.told_fetched_from, from);
  offer(context.state, policy_id, from, std::move(weights));
  context.act(Forked{policy_id, from});
  // Their steps are of the abandoned lineage; what ran in them is queued below.
  policy.rounds.clear();
  evaluate_anew(context, policy, from);
  for (Dataset& dataset : policy.datasets) {
    // relaunch() moves a task to the launch queue and does not look at this one.
    const auto tainted = [&](const TaskId& id) {
      return newest_version(policy.tasks.at(id)) >= from;
    };
    std::erase_if(dataset.ready, tainted);
    std::erase_if(dataset.parked, tainted);
  }
  std::vector<TaskId> abandoned, kept;
  for (const auto& [id, task] : policy.tasks) {
    if (task.place == Place::kQueued || task.place == Place::kLong) continue;
    // A task is broken by any weights.
    if (task.place == Place::kDone && task.end == TaskEnd::kBroken) continue;
    // A group that still runs has lost its round, whatever it was sampled from.
    const bool cut_off = task.place == Place::kDone && task.end == TaskEnd::kUnreached;
    const bool taints = newest_version(task) >= from || task.place == Place::kRunning || cut_off;
    const bool in_batch = task.place == Place::kHandedOver ||
                          (task.place == Place::kDone && task.end == TaskEnd::kTrained);
    if (taints) abandoned.push_back(id);
    if (!taints && in_batch && task.step > from) kept.push_back(id);
  }
  // Up to `from` nothing is trained again.
  policy.batches.erase(policy.batches.upper_bound(from), policy.batches.end());
  for (const TaskId& id : kept) return_to_ready(context, policy, id);
  park_beyond_credit(context.config(), policy);
  for (const TaskId& id : abandoned) {
    withdraw_end(context, policy, id);
    relaunch(context, policy, id);
  }
  // The start of a replayed step is left alone: the step that waits for its end goes on.
  policy.step_start = step_start_at(policy, context.state.now);
}

// The groups of a batch are consumed.
void finish_batch(Context& context, Policy& policy, int64_t step) {
  const auto batch = policy.batches.find(step);
  if (batch == policy.batches.end()) return;
  for (const TaskId& id : batch->second.tasks) {
    // In a replay they ended at the first publication.
    if (policy.tasks.at(id).place == Place::kHandedOver)
      end_task(context, policy, id, TaskEnd::kTrained, step);
  }
}

}  // namespace

void on_trainer_lost(Policy& policy) {
  policy.formation = 0;
  policy.wanted.reset();
  forget_told(policy);
  policy.saving = -1;
  policy.told_released = policy.told_fetched_from = 0;
}

void on(Context& context, const TrainerWants& event) {
  if (policy_of_trainer(context.state, event.policy, event.worker) == nullptr) {
    // One that waits for its turn asks once; it is answered when the turn comes.
    const auto worker = context.state.workers.find(event.worker);
    if (worker != context.state.workers.end() && worker->second.greeting)
      worker->second.question = event;
    return;
  }
  Policy& policy = context.state.policies.at(event.policy);
  if (event.step != policy.published + 1) return;
  policy.wanted = event.step;
  forget_told(policy);  // asked again: answered again, with the same list
}

void on(Context& context, const Published& event) {
  if (!expects(context.state, event)) return;
  Policy& policy = context.state.policies.at(event.policy);
  end_stage_of_ranks(policy);
  policy.published = event.version;
  policy.wanted.reset();
  forget_told(policy);
  // For a trainer only a new version is a good answer, or a checkpoint: asking for a batch costs it
  // nothing, and a replay that ends before what failed proves nothing.
  if (event.version > policy.frontier) {
    record_good(context, event.worker);
    for (const auto& [rank, worker] : policy.ranks) record_good(context, worker);
  }
  finish_batch(context, policy, event.version);
  Weights weights = weights_of(policy, event);
  if (event.version > policy.frontier) {
    policy.frontier = event.version;
    offer(context.state, event.policy, event.version, std::move(weights));
    drop_stale(context, event.policy, policy);
    policy.step_start = step_start_at(policy, context.state.now);
  } else if (!is_master(policy, event.version, event.master)) {
    fork(context, event.policy, event.version, std::move(weights));
  } else {
    offer_again(context.state, event.policy, event.version, std::move(weights));
  }
  release_weights(context, event.policy);
}

void on(Context& context, const Durable& event) {
  if (!expects(context.state, event)) return;
  Policy& policy = context.state.policies.at(event.policy);
  policy.durable = event.version;
  record_good(context, event.worker);
  // A newer checkpoint may turn out to be damaged: what came after the oldest is kept (law 9.2).
  let_go(context, policy, std::min(event.oldest, event.version));
  release_weights(context, event.policy);
}

void reopen(Context& context) {
  State& state = context.state;
  state.end.reset();
  state.ended = false;
  for (auto& [id, policy] : state.policies) {
    std::vector<TaskId> cut;
    for (const auto& [task_id, task] : policy.tasks) {
      // Collected first: relaunch() changes places.
      if (task.place == Place::kDone && task.end == TaskEnd::kUnreached) cut.push_back(task_id);
    }
    for (const TaskId& task_id : cut) {
      withdraw_end(context, policy, task_id);
      relaunch(context, policy, task_id);
    }
  }
}

void on(Context& context, const TrainingStage& event) {
  if (!expects(context.state, event)) return;
  context.state.policies.at(event.policy).stage = {event.number, event.of, event.name};
}

void on(Context& context, const RolledBack& event) {
  State& state = context.state;
  const auto it = state.policies.find(event.policy);
  const auto worker = state.workers.find(event.worker);
  if (it == state.policies.end() || worker == state.workers.end()) return;
  if (worker->second.rank != 0) return;
  Policy& policy = it->second;
  // One holder of the role: a second trainer waits until the first is gone.
  if (policy.trainer != event.worker && trainer_of(state, policy) != nullptr) {
    worker->second.greeting = event;
    return;
  }
  // A process never loses versions, so an older one from the same process is a message that was
  // sent again because the scheduler died before it could acknowledge it.
  const uint64_t incarnation = worker->second.incarnation;
  const bool same_process =
      policy.trainer == event.worker && policy.trainer_incarnation == incarnation;
  if (same_process && event.version < policy.published) return;
  policy.trainer = event.worker;
  policy.trainer_incarnation = incarnation;
  policy.greeted = true;
  const Published published{event.worker, event.policy,   event.version,
                            event.digest, event.manifest, event.master};
  const Weights weights = weights_of(policy, published);
  if (policy.published < 0) {
    if (event.version >= 0) on(context, published);
    return;
  }
  // Its last publication did not reach us before it died; the checkpoint proves the step.
  if (event.version == policy.published + 1 && expects(context.state, published))
    return on(context, published);
  if (event.version == policy.published && is_master(policy, event.version, event.master))
    return offer_again(state, event.policy, event.version, weights);
  if (event.version < 0) {
    return halt(context,
                fmt::format("the trainer has no checkpoint, but the run is at version {}. Put the "
                            "checkpoints back, or start a new run directory",
                            policy.published));
  }
  // A version may be kept for its evaluation alone, without the batches that lead away from it.
  const bool leads_on =
      event.version == policy.frontier || policy.batches.contains(event.version + 1);
  if (event.version > policy.published || !policy.lineage.contains(event.version) || !leads_on) {
    const int64_t oldest =
        policy.batches.empty() ? policy.frontier : policy.batches.begin()->first - 1;
    return halt(
        context,
        fmt::format(
            "the trainer holds version {}, but the run is at version {} and can go back to {} at "
            "most: what was trained since is no longer kept. Put the newest checkpoint back, or "
            "start a new run directory",
            event.version, policy.published, oldest));
  }
  on_trainer_lost(policy);
  // The frontier stays where it is: what lies between is the replay (law 9.3).
  policy.published = event.version;
  // Newer checkpoints were no good, or it would not have come with this one.
  policy.durable = std::min(policy.durable, event.version);
  reopen(context);
  if (is_master(policy, event.version, event.master)) {
    offer_again(state, event.policy, event.version, weights);
  } else {
    fork(context, event.policy, event.version, weights);
  }
}

void hear_next_trainer(Context& context, PolicyId id) {
  for (auto& [worker_id, worker] : context.state.workers) {
    if (worker.role != Role::kTrainer || worker.policy != id || !worker.connected ||
        !worker.greeting)
      continue;
    on(context, *std::exchange(worker.greeting, std::nullopt));
    if (worker.question) on(context, *std::exchange(worker.question, std::nullopt));
    return;
  }
}

}  // namespace tailrace::scheduler
