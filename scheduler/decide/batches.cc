#include "scheduler/decide/batches.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/state/credit.h"
#include "scheduler/state/run_share.h"

namespace tailrace::scheduler {
namespace {

// With so many groups the dataset has what a step takes of it, or has run dry: short, and nothing
// is reserved that could still come (law 3.7).
bool has_its_part(const State& state, const Policy& policy, int32_t index, int64_t groups) {
  return groups >= state.config.datasets[static_cast<size_t>(index)].prompts_per_step ||
         reserved(policy, index) == 0;
}

bool step_complete(const State& state, const Policy& policy) {
  int64_t ready = 0;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const int64_t in_dataset = std::ssize(policy.datasets[static_cast<size_t>(i)].ready);
    if (!has_its_part(state, policy, i, in_dataset)) return false;
    ready += in_dataset;
  }
  return ready > 0;
}

// The latest version whose step may still train this group (law 4.2).
int64_t due(const State& state, const Policy& policy, const Task& task) {
  const auto oldest = oldest_version(task);
  return (oldest ? *oldest : policy.frontier) + state.config.mode.max_staleness;
}
int64_t due(const State& state, const Policy& policy, const TaskId& id) {
  return due(state, policy, policy.tasks.at(id));
}

// Groups that are due sooner go first, and of these the one that was complete first.
void order_by_due(const State& state, Policy& policy) {
  std::vector<std::pair<int64_t, TaskId>> order;
  for (Dataset& dataset : policy.datasets) {
    // Each group is asked once: a step may hold many.
    order.clear();
    for (const TaskId& id : dataset.ready) order.emplace_back(due(state, policy, id), id);
    const auto by_due = &std::pair<int64_t, TaskId>::first;
    if (std::ranges::is_sorted(order, {}, by_due)) continue;
    std::ranges::stable_sort(order, {}, by_due);
    for (size_t k = 0; k < order.size(); ++k) dataset.ready[k] = order[k].second;
  }
}

// A group that is complete behind its round may be due sooner than one that has a place: they
// change places, or a step would wait for ever for what nothing lets in.
void let_parked_in(const State& state, Policy& policy) {
  const auto by_due = [&](const TaskId& id) { return due(state, policy, id); };
  for (Dataset& dataset : policy.datasets) {
    while (!dataset.parked.empty() && !dataset.ready.empty()) {
      const auto soonest = std::ranges::min_element(dataset.parked, {}, by_due);
      const auto latest = std::ranges::max_element(dataset.ready, {}, by_due);
      if (by_due(*soonest) >= by_due(*latest)) break;
      Task &in = policy.tasks.at(*soonest), &out = policy.tasks.at(*latest);
      std::swap(in.place, out.place);
      std::swap(in.round, out.round);
      std::swap(*soonest, *latest);
    }
  }
}

// Law 4.2: whether every group that is not in the next batch has a place before it is too old.
// Expects the ready ones in the order of order_by_due().
bool leaves_places(const State& state, const Policy& policy) {
  const size_t num_datasets = policy.datasets.size();
  // For each dataset, how many groups seen so far are due by which version: a few versions.
  std::vector<std::map<int64_t, int64_t>> dues(num_datasets);
  // One more is due by then. False: it is one too many, and no other group can change that.
  const auto add = [&](size_t dataset, int64_t version) {
    ++dues[dataset][version];
    const int64_t q = state.config.datasets[dataset].prompts_per_step;
    int64_t seen = 0;
    for (const auto& [by, count] : dues[dataset]) {
      seen += count;
      // Steps that start from frontier + 1 to the version that they are due by have q places each.
      if (seen > (by - policy.frontier) * q) return false;
    }
    return true;
  };
  for (size_t i = 0; i < num_datasets; ++i) {
    const int64_t q = state.config.datasets[i].prompts_per_step;
    const std::deque<TaskId>& ready = policy.datasets[i].ready;
    for (int64_t k = q; k < std::ssize(ready); ++k)
      if (!add(i, due(state, policy, ready[static_cast<size_t>(k)]))) return false;
  }
  // The oldest prompts first, which are mostly those that a step waits for.
  for (const auto& [id, task] : policy.tasks) {
    if (task.place != Place::kRunning && task.place != Place::kParked) continue;
    if (!add(static_cast<size_t>(id.dataset), due(state, policy, task))) return false;
  }
  return true;
}

// Moves groups out of the ready queues behind those that the batch has, up to each dataset's share.
void take_ready(const State& state, Policy& policy, int64_t step, Batch& batch) {
  batch.datasets.resize(policy.datasets.size());
  const auto begin = std::ssize(batch.tasks);
  for (size_t i = 0; i < policy.datasets.size(); ++i) {
    std::deque<TaskId>& ready = policy.datasets[i].ready;
    for (; batch.datasets[i] < state.config.datasets[i].prompts_per_step && !ready.empty();
         ready.pop_front()) {
      batch.tasks.push_back(ready.front());
      ++batch.datasets[i];
    }
  }
  std::sort(batch.tasks.begin() + begin, batch.tasks.end(),
            [](const TaskId& a, const TaskId& b) { return batch_order(a) < batch_order(b); });
  for (auto id = batch.tasks.begin() + begin; id != batch.tasks.end(); ++id) {
    Task& task = policy.tasks.at(*id);
    task.place = Place::kHandedOver;
    task.step = step;
  }
}

// The part of the run that the step is, once its batch is whole. It begins where the step before
// it ended, so that a prompt that was filtered in between is of this step.
void set_share(const State& state, const Policy& policy, int64_t step, Batch& batch) {
  batch.used = prompts_used(state.config, policy);
  const auto before = policy.lineage.find(step - 1);
  const std::vector<int64_t> none;
  batch.share_begin = share_done(state.config, step - 1,
                                 before == policy.lineage.end() ? none : before->second.used);
  // After a fork less may be used than before.
  batch.share_end = std::max(batch.share_begin, share_done(state.config, step, batch.used));
}

// The step's batch, once it is complete. False: not yet.
bool form_batch(const State& state, Policy& policy, int64_t step) {
  if (!step_complete(state, policy)) return false;
  if (state.config.mode.on_stale == OnStale::kWait) {
    let_parked_in(state, policy);
    order_by_due(state, policy);
    if (!leaves_places(state, policy)) return false;
  }
  Batch& batch = policy.batches[step];
  take_ready(state, policy, step, batch);
  set_share(state, policy, step, batch);
  return true;
}

// The step's batch with what is complete now. False: there is nothing yet.
bool grow_batch(const State& state, Policy& policy, int64_t step) {
  const bool any = std::ranges::any_of(
      policy.datasets, [](const Dataset& dataset) { return !dataset.ready.empty(); });
  const auto found = policy.batches.find(step);
  if (found == policy.batches.end() && !any) return false;
  Batch& batch = policy.batches[step];
  take_ready(state, policy, step, batch);
  batch.whole = true;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const int64_t groups = batch.datasets[static_cast<size_t>(i)];
    batch.whole = batch.whole && has_its_part(state, policy, i, groups);
  }
  if (batch.whole) set_share(state, policy, step, batch);
  return true;
}

}  // namespace

HandOver make_hand_over(PolicyId policy_id, const Policy& policy, int64_t step, int64_t told,
                        int64_t first) {
  const Batch& batch = policy.batches.at(step);
  HandOver action;
  action.policy = policy_id;
  action.step = step;
  action.first = first;
  action.last = batch.whole;
  action.share_begin = batch.share_begin;
  action.share_end = batch.share_end;
  for (int64_t k = told; k < std::ssize(batch.tasks); ++k) {
    const TaskId& id = batch.tasks[static_cast<size_t>(k)];
    const Task& task = policy.tasks.at(id);
    for (int32_t i = 0; i < std::ssize(task.members); ++i) {
      const Member& member = task.members[static_cast<size_t>(i)];
      // It failed for good: its group trains without it (law 3.5).
      if (!member.reward) continue;
      action.items.push_back(
          {{member_id(id, task.launch, i), member.attempt}, *member.reward, member.judged});
    }
  }
  return action;
}

void forget_told(Policy& policy) {
  policy.told = policy.told_items = 0;
  policy.handed = false;
}

void hand_over(Context& context, PolicyId policy_id, Policy& policy) {
  const int64_t step = policy.published + 1;
  if (policy.wanted != step || policy.handed) return;
  if (!can_train(context.state, policy)) return;
  // A batch that was whole before is given as it was: nobody installs in a replay, so it moves no
  // weights under an evaluation either.
  auto batch = policy.batches.find(step);
  if (batch == policy.batches.end() || !batch->second.whole) {
    if (!at_frontier(policy)) return;
    if (waits_for_report(context.config(), policy)) return;
    if (context.config().steps > 0 && step > context.config().steps) return;
    const bool by_groups = context.config().mode.hand_over == HandOverBy::kGroups;
    if (!(by_groups ? grow_batch : form_batch)(context.state, policy, step)) return;
    batch = policy.batches.find(step);
  }
  // News for the trainer since it asked: another group, or that none comes.
  const int64_t groups = std::ssize(batch->second.tasks);
  if (groups == policy.told && !batch->second.whole) return;
  HandOver list = make_hand_over(policy_id, policy, step, policy.told, policy.told_items);
  context.tell(policy.trainer, list);
  list.copy = true;
  for (const auto& [rank, id] : policy.ranks) context.tell(id, list);
  policy.told = groups;
  policy.told_items += std::ssize(list.items);
  // Until it publishes, asks again, or is lost.
  policy.handed = batch->second.whole;
  batch->second.handed = context.state.now;
}

void take_apart(Policy& policy, int64_t step) {
  const auto batch = policy.batches.find(step);
  for (auto id = batch->second.tasks.rbegin(); id != batch->second.tasks.rend(); ++id) {
    policy.tasks.at(*id).place = Place::kReady;
    dataset_of(policy, *id).ready.push_front(*id);
  }
  policy.batches.erase(batch);
  forget_told(policy);
}

}  // namespace tailrace::scheduler
