#include "scheduler/decide/rounds.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/base/group_signal.h"
#include "scheduler/decide/attempts.h"
#include "scheduler/decide/batches.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/health.h"
#include "scheduler/state/credit.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/run_share.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

bool endless(const DatasetConfig& config) { return config.prompts_per_epoch == 0; }

bool has_fresh(const DatasetConfig& config, const Dataset& dataset) {
  if (endless(config)) return true;
  return !all_broken(config, dataset) && (config.epochs == 0 || dataset.epoch < config.epochs);
}

// Prompts of finite data that the cursor will come to and can be played.
int64_t num_fresh(const DatasetConfig& config, const Dataset& dataset) {
  const std::set<int64_t>& broken = dataset.broken.rows;
  const int64_t passed = std::distance(broken.begin(), broken.lower_bound(dataset.next));
  return (config.epochs - dataset.epoch) * (config.prompts_per_epoch - std::ssize(broken)) -
         (dataset.next - passed);
}

// The prompt at the cursor. Epochs have no barrier: the next one begins at once.
TaskId take_fresh(const DatasetConfig& config, Dataset& dataset, PolicyId policy, int32_t index) {
  const TaskId id{policy, index, dataset.epoch, dataset.next++};
  if (!endless(config) && dataset.next == config.prompts_per_epoch) {
    ++dataset.epoch;
    dataset.next = 0;
  }
  return id;
}

// The cursor comes to stand at a prompt that can be played. Those that it passes by have ended, as
// every prompt does.
void skip_broken(Context& context, Policy& policy, PolicyId policy_id, int32_t index) {
  const DatasetConfig& config = context.config().datasets[static_cast<size_t>(index)];
  Dataset& dataset = policy.datasets[static_cast<size_t>(index)];
  while (has_fresh(config, dataset) && dataset.broken.rows.contains(dataset.next)) {
    const TaskId id = take_fresh(config, dataset, policy_id, index);
    ++dataset.ended_as(TaskEnd::kBroken);
    context.act(TaskDone{id, TaskEnd::kBroken, policy.frontier + 1});
  }
}

// Something can be started in this dataset.
bool has_prompts(const Config& config, const Policy& policy, int32_t index) {
  const Dataset& dataset = policy.datasets[static_cast<size_t>(index)];
  return !dataset.queued.empty() || !dataset.long_queue.empty() ||
         has_fresh(config.datasets[static_cast<size_t>(index)], dataset);
}

// Something was started there that no round keeps a place for.
bool has_surplus(const Dataset& dataset) {
  return !dataset.parked.empty() || !dataset.carried.empty();
}

// Prompts of finite data that have not been launched.
int64_t unlaunched(const State& state, const Policy& policy) {
  int64_t sum = 0;
  for (size_t i = 0; i < policy.datasets.size(); ++i) {
    const DatasetConfig& config = state.config.datasets[i];
    if (endless(config) || config.epochs == 0 || config.prompts_per_step == 0) continue;
    const Dataset& dataset = policy.datasets[i];
    // Prompts of broken rows count as well: the cursor has not passed them.
    sum += (config.epochs - dataset.epoch) * config.prompts_per_epoch - dataset.next;
  }
  return sum;
}

// The prompt of the next group that `round` starts: queued ones first; a long round then takes long
// prompts, another one only where fresh ones have ended and the group is one that it keeps.
std::optional<TaskId> take_prompt(Context& context, PolicyId policy_id, Policy& policy,
                                  const Round& round, int32_t index) {
  const DatasetConfig& config = context.config().datasets[static_cast<size_t>(index)];
  Dataset& dataset = policy.datasets[static_cast<size_t>(index)];
  const Share& share = round.shares[static_cast<size_t>(index)];
  // Oldest prompt first, whatever order they were queued in.
  const auto take = [](std::set<TaskId>& queue) {
    return std::move(queue.extract(queue.begin()).value());
  };
  if (!dataset.queued.empty()) return take(dataset.queued);
  if (round.kind == RoundKind::kLong && !dataset.long_queue.empty())
    return take(dataset.long_queue);
  if (has_fresh(config, dataset)) {
    const TaskId id = take_fresh(config, dataset, policy_id, index);
    skip_broken(context, policy, policy_id, index);
    return id;
  }
  const bool kept = share.accepted + share.running < share.target;
  if (kept && !dataset.long_queue.empty()) return take(dataset.long_queue);
  return std::nullopt;
}

// Starts one group for the share of this dataset. False: nothing is left.
bool launch(Context& context, PolicyId policy_id, Policy& policy, Round& round, int32_t index) {
  const auto taken = take_prompt(context, policy_id, policy, round, index);
  if (!taken) return false;
  const TaskId id = *taken;
  // A queued task is there already, with the launch number that relaunch() gave it.
  Task& task = policy.tasks[id];
  task.place = Place::kRunning;
  task.round = round.id;
  // Law 3.4. Without a floor a launch at publication would run on the weights that workers still
  // hold.
  task.weight_floor = policy.frontier;
  // Leases of what was before are never given again.
  Member fresh;
  fresh.attempt = fresh.last_attempt = task.attempts;
  task.members.assign(static_cast<size_t>(members_to_launch(context.config(), round)), fresh);
  add_all_waiting(context.state, Lane::kTrain, id, task);
  ++round.shares[static_cast<size_t>(index)].running;
  return true;
}

// Holds all that it keeps.
bool full(const Share& share) { return share.accepted == share.target; }

// It has a place in a step from now on.
void make_ready(Policy& policy, const TaskId& id) {
  policy.tasks.at(id).place = Place::kReady;
  dataset_of(policy, id).ready.push_back(id);
}

// Groups for which no round has kept a place come before anything is started: complete ones, then
// those that still run, oldest first.
void adopt(Policy& policy, Round& round, int32_t index) {
  Dataset& dataset = policy.datasets[static_cast<size_t>(index)];
  Share& share = round.shares[static_cast<size_t>(index)];
  for (; !full(share) && !dataset.parked.empty(); dataset.parked.pop_front()) {
    const TaskId id = dataset.parked.front();
    policy.tasks.at(id).round = round.id;
    make_ready(policy, id);
    ++share.accepted;
  }
  while (!full(share) && share.accepted + share.running < share.launch_target &&
         !dataset.carried.empty()) {
    const TaskId id = dataset.carried.extract(dataset.carried.begin()).value();
    policy.tasks.at(id).round = round.id;
    ++share.running;
  }
}

// Starts groups until every share has what it aims at; shares shrink when nothing more can come.
void fill(Context& context, PolicyId policy_id, Policy& policy, Round& round) {
  for (int32_t i = 0; i < std::ssize(round.shares); ++i) {
    Share& share = round.shares[static_cast<size_t>(i)];
    adopt(policy, round, i);
    while (!full(share) && share.accepted + share.running < share.launch_target) {
      if (launch(context, policy_id, policy, round, i)) continue;
      // Nothing more can come: the share aims at what it has, so that the round can close and the
      // step run short (law 3.7).
      share.launch_target = share.accepted + share.running;
      share.target = std::min(share.target, share.launch_target);
    }
  }
}

// The tokens are thrown away, and the prompt waits in one of the queues.
void launch_again(Context& context, Policy& policy, const TaskId& id, Place queue) {
  Task& task = policy.tasks.at(id);
  if (is_broken(context.state, Lane::kTrain, id)) {
    dataset_of(policy, id).carried.erase(id);
    return end_task(context, policy, id, TaskEnd::kBroken, policy.frontier + 1);
  }
  void_members(context, Lane::kTrain, id, task);
  release_bodies(context, Lane::kTrain, id, task);
  // Another launch has other names for its members: what the old one's leases still bring is
  // fenced.
  task = Task{.place = queue, .launch = task.launch + 1, .members = {}};
  Dataset& dataset = dataset_of(policy, id);
  dataset.carried.erase(id);
  (queue == Place::kLong ? dataset.long_queue : dataset.queued).insert(id);
}

// Groups that still run in a full share are its tail.
void end_tail(Context& context, Policy& policy, Round& round, int32_t index) {
  Share& share = round.shares[static_cast<size_t>(index)];
  if (!full(share) || share.running == 0) return;
  std::vector<TaskId> tail;
  for (const auto& [id, task] : policy.tasks) {
    if (id.dataset == index && task.place == Place::kRunning && task.round == round.id)
      tail.push_back(id);
  }
  share.running = 0;
  for (const TaskId& id : tail) {
    if (context.config().mode.tail == TailPolicy::kKeep) {
      policy.tasks.at(id).round = 0;
      dataset_of(policy, id).carried.insert(id);
    } else {
      launch_again(context, policy, id, Place::kLong);
    }
  }
}

// After any change of shares: the tails of full shares end, groups start until every other share
// has what it aims at, and rounds whose shares are all full close.
void advance_rounds(Context& context, PolicyId policy_id, Policy& policy) {
  for (Round& round : policy.rounds) {
    fill(context, policy_id, policy, round);
    for (int32_t i = 0; i < std::ssize(round.shares); ++i) end_tail(context, policy, round, i);
  }
  std::erase_if(policy.rounds,
                [](const Round& round) { return std::ranges::all_of(round.shares, full); });
}

// Null once it is closed, and of what has none.
Round* find_round(Policy& policy, RoundId id) {
  const auto found = std::ranges::find(policy.rounds, id, &Round::id);
  return found == policy.rounds.end() ? nullptr : &*found;
}

// It gives up the place of a group that runs, is parked or ready: one in an open round is free
// again, of a closed one its credit is, and the next round takes it.
void leave_round(Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  if (Round* round = find_round(policy, task.round); round != nullptr) {
    Share& share = round->shares[static_cast<size_t>(id.dataset)];
    --(task.place == Place::kRunning ? share.running : share.accepted);
  }
  if (task.place == Place::kRunning) dataset_of(policy, id).carried.erase(id);
}

// The same, and its place in the list of what is complete, which is walked.
void leave_place(Policy& policy, const TaskId& id) {
  leave_round(policy, id);
  const Place place = policy.tasks.at(id).place;
  if (place == Place::kParked) std::erase(dataset_of(policy, id).parked, id);
  if (place == Place::kReady) std::erase(dataset_of(policy, id).ready, id);
}

bool zero_signal(const Task& task) {
  GroupSignal signal;
  for (const Member& member : task.members) {
    // A member that failed for good says nothing of the spread of rewards.
    if (member.reward) signal.add(*member.reward, member.judged);
  }
  return !signal.has();
}

// Whether the step has still rounds to find groups with a signal (law 3.9).
bool may_replace(const Config& config, const Policy& policy, int32_t index) {
  if (!config.replace_zero_signal) return false;
  if (config.max_gen_batches == 0) return true;
  const auto i = static_cast<size_t>(index);
  const int64_t replaced =
      policy.datasets[i].ended_as(TaskEnd::kFiltered) - policy.step_start.filtered.at(i);
  return replaced < (config.max_gen_batches - 1) * config.datasets[i].prompts_per_step;
}

}  // namespace

int64_t members_to_launch(const Config& config, const Round& round) {
  switch (round.kind) {
    case RoundKind::kLong:
      return config.group_size;
    case RoundKind::kPlain:
    case RoundKind::kShort:
      break;
  }
  return config.mode.members_to_launch(config.group_size);
}

namespace {

// Prompts at the cursor, up to `enough`.
bool has_fresh_for(const DatasetConfig& config, const Dataset& dataset, int64_t enough) {
  if (endless(config) || config.epochs == 0) return true;
  return num_fresh(config, dataset) >= enough;
}

// A long round once its queue holds a step, or where fresh prompts would not fill a short one.
RoundKind next_kind(const Config& config, const Policy& policy, const std::vector<Share>& shares) {
  if (config.mode.tail != TailPolicy::kDiscard) return RoundKind::kPlain;
  int64_t queued = 0;
  bool data_ends = false;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Dataset& dataset = policy.datasets[i];
    queued += std::ssize(dataset.long_queue);
    // A dataset that has run dry says nothing of the others.
    const bool dry = dataset.long_queue.empty() && !has_fresh(config.datasets[i], dataset);
    data_ends =
        data_ends || (!dry && !has_fresh_for(config.datasets[i], dataset, shares[i].launch_target));
  }
  return queued >= config.prompts_per_step() || (data_ends && queued > 0) ? RoundKind::kLong
                                                                          : RoundKind::kShort;
}

// Groups that the steps left can take, in a dataset.
int64_t places_left(const Config& config, const Policy& policy, int32_t index) {
  if (config.steps == 0) return std::numeric_limits<int64_t>::max();
  return (config.steps - policy.frontier) *
         config.datasets[static_cast<size_t>(index)].prompts_per_step;
}

}  // namespace

void open_rounds(Context& context, PolicyId policy_id, Policy& policy) {
  const Config& config = context.config();
  if (!at_frontier(policy)) return;
  const int64_t step = policy.frontier + 1;
  if (config.steps > 0 && step > config.steps) return;
  const auto room_of = [&](int32_t i) {
    const int64_t allowed = std::min(credit(config, i), places_left(config, policy, i));
    // Below 0 only when `restarted` brought rules with less credit than is held.
    return std::max<int64_t>(0, allowed - credit_held(policy, i));
  };
  // Nothing to start: a round would open and close in one breath, at every event.
  bool any = false;
  for (int32_t i = 0; i < std::ssize(policy.datasets) && !any; ++i) {
    any = room_of(i) > 0 &&
          (has_prompts(config, policy, i) || has_surplus(policy.datasets[static_cast<size_t>(i)]));
  }
  if (!any) return;
  Round round{.id = policy.last_round + 1, .kind = RoundKind::kPlain, .step = step, .shares = {}};
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const int64_t room = room_of(i);
    round.shares.push_back({.target = room,
                            .launch_target = config.mode.groups_to_launch(room),
                            .running = 0,
                            .accepted = 0});
  }
  round.kind = next_kind(config, policy, round.shares);
  if (round.kind == RoundKind::kLong) {
    for (Share& share : round.shares) share.launch_target = share.target;
  }
  policy.last_round = round.id;
  policy.rounds.push_back(std::move(round));
  advance_rounds(context, policy_id, policy);
}

void halt_without_tasks(Context& context, const Policy& policy) {
  const Config& config = context.config();
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const DatasetConfig& planned = config.datasets[static_cast<size_t>(i)];
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    if (dataset.broken.found == 0) continue;
    // Groups that have a place in a step, or will have one.
    const int64_t complete =
        credit_held(policy, i) - reserved(policy, i) + std::ssize(dataset.parked);
    if (planned.prompts_per_step == 0 || places_left(config, policy, i) <= complete) continue;
    // One that draws its tasks could go on for ever: as many as the breaker looks at are enough,
    // but twice those that run, for a broken one is known long before a sound one is scored.
    const bool drawn = endless(planned) && config.breaker.window > 0 &&
                       dataset.broken.in_a_row >= config.breaker.window &&
                       dataset.broken.in_a_row >= 2 * num_running(policy, i);
    if (!drawn && !all_broken(planned, dataset)) continue;
    const std::string name =
        planned.name.empty() ? fmt::format("number {}", i) : fmt::format("'{}'", planned.name);
    const std::string what =
        drawn ? fmt::format("the last {} tasks of dataset {}", dataset.broken.in_a_row, name)
              : fmt::format("all {} rows of dataset {}", planned.prompts_per_epoch, name);
    return halt(context,
                fmt::format("{} are broken: nobody can play or score them; the last one: {}. Mend "
                            "the dataset, or its environment or reward, and start a new run "
                            "directory: this run does not ask for them again",
                            what, dataset.broken.last_reason));
  }
}

void end_task(Context& context, Policy& policy, const TaskId& id, TaskEnd end, int64_t step) {
  Task& task = policy.tasks.at(id);
  void_members(context, Lane::kTrain, id, task);
  // Trained samples may be asked for again, until the oldest checkpoint covers them.
  if (end != TaskEnd::kTrained) release_bodies(context, Lane::kTrain, id, task);
  task.place = Place::kDone;
  task.end = end;
  task.step = step;
  ++dataset_of(policy, id).ended_as(end);
  context.act(TaskDone{id, end, step});
}

void settle_task(Context& context, Policy& policy, const TaskId& id) {
  Task& task = policy.tasks.at(id);
  // A group that was settled before it in this event may have filled their round.
  if (task.place != Place::kRunning || !complete(context.config(), task)) return;
  const int64_t rewarded = std::ranges::count(task.members, Phase::kRewarded, &Member::phase);
  drop_surplus_members(context, Lane::kTrain, id, task);
  Round* round = find_round(policy, task.round);
  dataset_of(policy, id).carried.erase(id);
  if (round != nullptr) --round->shares[static_cast<size_t>(id.dataset)].running;
  // No sample of it is newer than the frontier: a checkpoint of the next version makes its end
  // final.
  const int64_t step = policy.frontier + 1;
  // Failed before filtered: too few rewards are equal by chance.
  if (rewarded < context.config().members_needed()) {
    end_task(context, policy, id, TaskEnd::kFailed, step);
  } else if (may_replace(context.config(), policy, id.dataset) && zero_signal(task)) {
    end_task(context, policy, id, TaskEnd::kFiltered, step);
  } else if (round != nullptr) {
    ++round->shares[static_cast<size_t>(id.dataset)].accepted;
    make_ready(policy, id);
  } else {
    task.place = Place::kParked;
    dataset_of(policy, id).parked.push_back(id);
  }
  advance_rounds(context, id.policy, policy);
}

void exclude_task(Context& context, Policy& policy, const BrokenWord& word) {
  const TaskId& id = word.task;
  Dataset& dataset = dataset_of(policy, id);
  const int64_t row = row_of(context.state, id);
  ++dataset.broken.found;
  ++dataset.broken.in_a_row;
  dataset.broken.last_reason = word.reason;
  context.act(TaskBroken{word.lane, id, row, word.reason});
  const auto end = [&](const TaskId& ended) {
    leave_place(policy, ended);
    dataset.queued.erase(ended);
    dataset.long_queue.erase(ended);
    end_task(context, policy, ended, TaskEnd::kBroken, policy.frontier + 1);
  };
  end(id);
  // A prompt of a dataset without rows comes once: there is nothing to remember.
  if (!endless(context.config().datasets[static_cast<size_t>(id.dataset)])) {
    dataset.broken.rows.insert(row);
    // Tasks of other epochs. A task that is complete was scored, and is trained.
    for (int64_t epoch = 0; epoch <= dataset.epoch; ++epoch) {
      const TaskId other{id.policy, id.dataset, epoch, id.prompt};
      const auto task = policy.tasks.find(other);
      if (task == policy.tasks.end()) continue;
      const Place place = task->second.place;
      if (place == Place::kRunning || place == Place::kQueued || place == Place::kLong) end(other);
    }
    skip_broken(context, policy, id.policy, id.dataset);
  }
  advance_rounds(context, id.policy, policy);
}

void drop_stale(Context& context, PolicyId policy_id, Policy& policy) {
  const Mode& mode = context.config().mode;
  if (mode.on_stale != OnStale::kDrop || !at_frontier(policy)) return;
  std::vector<TaskId> stale;
  for (const auto& [id, task] : policy.tasks) {
    if (task.place != Place::kRunning && task.place != Place::kParked &&
        task.place != Place::kReady)
      continue;
    // The next step starts from the frontier at the earliest.
    const auto oldest = oldest_version(task);
    if (oldest && policy.frontier - *oldest > mode.max_staleness) stale.push_back(id);
  }
  // In the order of the tasks. Each list is walked once, not once for each of them.
  const auto is_stale = [&](const TaskId& id) { return std::ranges::binary_search(stale, id); };
  for (Dataset& dataset : policy.datasets) {
    if (stale.empty()) break;
    std::erase_if(dataset.parked, is_stale);
    std::erase_if(dataset.ready, is_stale);
  }
  for (const TaskId& id : stale) {
    leave_round(policy, id);
    end_task(context, policy, id, TaskEnd::kStale, policy.frontier + 1);
  }
  if (!stale.empty()) advance_rounds(context, policy_id, policy);
}

void withdraw_end(Context& context, Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  if (task.place != Place::kDone) return;
  --dataset_of(policy, id).ended_as(task.end);
  context.act(TaskWithdrawn{id});
}

void relaunch(Context& context, Policy& policy, const TaskId& id) {
  launch_again(context, policy, id, Place::kQueued);
}

// The same launch, whose random numbers are those of its members: the same tokens come again.
void sample_again(Context& context, Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  const int32_t launch = task.launch;
  const int32_t attempts = std::ranges::max(task.members, {}, &Member::last_attempt).last_attempt;
  relaunch(context, policy, id);
  Task& again = policy.tasks.at(id);
  if (again.place == Place::kDone) return;  // its row was called broken since
  again.launch = launch;
  again.attempts = attempts;
}

void let_go(Context& context, Policy& policy, int64_t version) {
  Release release;
  for (auto task = policy.tasks.begin(); task != policy.tasks.end();) {
    // Tasks that the end of the run cut off are kept: a run that is continued goes back to them.
    if (task->second.place != Place::kDone || task->second.step > version ||
        task->second.end == TaskEnd::kUnreached) {
      ++task;
      continue;
    }
    std::ranges::copy(bodies_of(Lane::kTrain, task->first, task->second),
                      std::back_inserter(release.bodies));
    task = policy.tasks.erase(task);
  }
  policy.batches.erase(policy.batches.begin(), policy.batches.upper_bound(version));
  // The version itself stays: a trainer can go back to it.
  // So does the one that is evaluated: workers that come may have to install it.
  int64_t kept = policy.evaluation ? std::min(version, policy.evaluation->version) : version;
  // And what a worker samples by, or installs: it is old, and not abandoned.
  const auto keep = [&](int64_t held, const Digest& digest) {
    if (on_lineage(policy, held, digest)) kept = std::min(kept, held);
  };
  for (const auto& [id, worker] : context.state.workers) {
    const auto its = context.state.policies.find(worker.policy);
    if (its == context.state.policies.end() || &its->second != &policy) continue;
    keep(worker.version, worker.digest);
    if (worker.install) keep(worker.install->version, worker.install->digest);
  }
  policy.lineage.erase(policy.lineage.begin(), policy.lineage.lower_bound(kept));
  make_index(context.state);  // who installs a version that is no longer kept is behind
  if (!release.bodies.empty()) context.act(std::move(release));
}

void on(Context& context, const BodiesLost& event) {
  for (const BodyId& body : event.bodies) {
    const MemberId& member = body.lease.member;
    Task* task = find_task(context.state, body.lane, member);
    // A body of an attempt that no longer counts: nothing rests on it.
    if (task == nullptr || !holds_body(context.state, body)) continue;
    if (body.turns > 0) {
      // The next attempt begins anew, and so does one that is to hear of it now.
      task->members[static_cast<size_t>(member.member)].prefix.reset();
      const WorkId work{body.lane, member};
      if (context.state.leases.contains(work)) context.state.leases.forget_turns(work);
      continue;
    }
    Policy& policy = context.state.policies.at(member.policy);
    if (body.lane == Lane::kEval) {
      on_eval_body_lost(context, policy, body);
      continue;
    }
    const TaskId id = task_of(member);
    // Kept for an older checkpoint alone, which can no longer be gone back to.
    if (task->place == Place::kDone && task->step <= policy.durable) {
      let_go(context, policy, policy.durable);
      continue;
    }
    if (task->place == Place::kHandedOver && !policy.batches.at(task->step).whole)
      take_apart(policy, task->step);
    if (task->place != Place::kRunning && task->place != Place::kParked &&
        task->place != Place::kReady) {
      return halt(
          context,
          fmt::format("the body of {} is missing or damaged, and its step was trained: start "
                      "again from an older checkpoint in a new run directory",
                      to_string(body.lease)));
    }
    task->members[static_cast<size_t>(member.member)].has_body = false;
    leave_place(policy, id);
    sample_again(context, policy, id);
    advance_rounds(context, id.policy, policy);
  }
}

bool exhausted(const State& state, const Policy& policy) {
  if (!at_frontier(policy) || !policy.rounds.empty()) return false;
  // A batch that is handed over and not published still is to be trained.
  if (policy.batches.upper_bound(policy.frontier) != policy.batches.end()) return false;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    if (!dataset.ready.empty() || has_surplus(dataset)) return false;
    const bool used = state.config.datasets[static_cast<size_t>(i)].prompts_per_step > 0;
    if (used && has_prompts(state.config, policy, i)) return false;
  }
  return true;
}

int64_t cut_off(Context& context, Policy& policy) {
  std::vector<TaskId> live;
  for (const auto& [id, task] : policy.tasks) {
    if (task.place != Place::kDone) live.push_back(id);
  }
  for (Dataset& dataset : policy.datasets) {
    dataset.queued.clear();
    dataset.long_queue.clear();
    dataset.carried.clear();
    dataset.parked.clear();
    dataset.ready.clear();
  }
  policy.rounds.clear();
  // One that was handed over and is not trained: its prompts end here.
  policy.batches.erase(policy.batches.upper_bound(policy.published), policy.batches.end());
  forget_told(policy);
  for (const TaskId& id : live)
    end_task(context, policy, id, TaskEnd::kUnreached, policy.published);
  // Prompts that were never launched have no task to end: they are only counted.
  int64_t unreached = unlaunched(context.state, policy);
  for (Dataset& dataset : policy.datasets) unreached += dataset.ended_as(TaskEnd::kUnreached);
  return unreached;
}

}  // namespace tailrace::scheduler
