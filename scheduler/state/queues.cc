#include "scheduler/state/queues.h"

#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace tailrace::scheduler {

Need need_of(const State& state, Lane lane, const TaskId& id, const Task& task) {
  return {lane, id.policy, task.weight_floor, state.config.pool_of(lane, id.dataset)};
}

namespace {

Need need_of(const State& state, const WorkId& work, const Task& task) {
  return need_of(state, work.lane, task_of(work.member), task);
}

Waiting waiting_of(const State& state, const WorkId& work, const Task& task) {
  return {rank_of(state, work.lane, task, work.member.member), work};
}

}  // namespace

void add_waiting(State& state, const WorkId& work) {
  const Task& task = *find_task(state, work.lane, work.member);
  state.waiting[need_of(state, work, task)].insert(waiting_of(state, work, task));
}

void drop_waiting(State& state, const WorkId& work) {
  const Task& task = *find_task(state, work.lane, work.member);
  // The need and the rank are computed from the task as it is, so an entry has to leave before
  // anything changes them: learn_length() takes siblings out first.
  const auto queue = state.waiting.find(need_of(state, work, task));
  if (queue == state.waiting.end()) return;
  queue->second.erase(waiting_of(state, work, task));
  if (queue->second.empty()) state.waiting.erase(queue);
}

void add_all_waiting(State& state, Lane lane, const TaskId& id, const Task& task) {
  std::set<Waiting>& queue = state.waiting[need_of(state, lane, id, task)];
  const auto waiting = [&](int32_t i) {
    return waiting_of(state, {lane, member_id(id, task.launch, i)}, task);
  };
  // One search for all but the first, which may have a rank of its own: they stand side by side.
  const auto last = static_cast<int32_t>(std::ssize(task.members)) - 1;
  const auto behind = queue.upper_bound(waiting(last));
  for (int32_t i = 0; i <= last; ++i) queue.emplace_hint(behind, waiting(i));
}

namespace {

// An unknown length goes before all known ones: its probe runs, and mostly has run longer by now
// than those that have told.
constexpr int64_t kProbeRank = std::numeric_limits<int64_t>::min();
constexpr int64_t kUnknownRank = kProbeRank + 1;

// An evaluation is served first, as it was launched.
bool has_ranks(const State& state, Lane lane) {
  return lane == Lane::kTrain && state.config.mode.dispatch_order == DispatchOrder::kLongestFirst;
}

}  // namespace

int64_t rank_of(const State& state, Lane lane, const Task& task, int32_t member) {
  if (!has_ranks(state, lane)) return 0;
  if (task.longest >= 0) return -task.longest;
  return member == 0 ? kProbeRank : kUnknownRank;
}

void learn_length(State& state, const WorkId& work, Task& task, int64_t tokens) {
  // The longest and not the mean, so that a rank changes seldom and in one direction only (law
  // 6.9).
  if (tokens <= task.longest) return;
  std::vector<WorkId> siblings;
  if (has_ranks(state, work.lane)) {
    for (int32_t i = 0; i < std::ssize(task.members); ++i) {
      if (task.members[static_cast<size_t>(i)].phase == Phase::kWaiting)
        siblings.push_back({work.lane, member_id(task_of(work.member), task.launch, i)});
    }
  }
  for (const WorkId& sibling : siblings) drop_waiting(state, sibling);
  task.longest = tokens;
  for (const WorkId& sibling : siblings) add_waiting(state, sibling);
}

void sort_waiting(State& state) {
  // A restart may bring another order of dispatch, or bind a dataset to another pool (law 1.5). All
  // needs and ranks are then made anew.
  const auto before = std::exchange(state.waiting, {});
  for (const auto& [need, queue] : before)
    for (const Waiting& waiting : queue) add_waiting(state, waiting.work);
}

int64_t num_waiting(const State& state) {
  int64_t count = 0;
  for (const auto& [need, members] : state.waiting) count += std::ssize(members);
  return count;
}

}  // namespace tailrace::scheduler
