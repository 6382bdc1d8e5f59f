#include "scheduler/decide/rounds.h"

#include <algorithm>
#include <tuple>

#include "kernels/base/check.h"
#include "scheduler/decide/attempts.h"
#include "scheduler/decide/evaluation.h"
#include "scheduler/decide/health.h"
#include "scheduler/state/credit.h"

namespace tailrace::scheduler {
namespace {

Domain& domain_of(Policy& policy, const TaskId& id) {
  return policy.domains[static_cast<size_t>(id.domain)];
}

bool endless(const DomainConfig& config) { return config.prompts_per_epoch == 0; }

bool has_fresh(const DomainConfig& config, const Domain& domain) {
  return endless(config) || config.epochs == 0 || domain.epoch < config.epochs;
}

// The prompt at the cursor. Epochs have no barrier: the next one begins at once.
TaskId take_fresh(const DomainConfig& config, Domain& domain, PolicyId policy, int32_t index) {
  const TaskId id{policy, index, domain.epoch, domain.next++};
  if (!endless(config) && domain.next == config.prompts_per_epoch) {
    ++domain.epoch;
    domain.next = 0;
  }
  return id;
}

// Something can be started in this domain.
bool has_prompts(const Config& config, const Policy& policy, int32_t index) {
  const Domain& domain = policy.domains[static_cast<size_t>(index)];
  return !domain.queued.empty() || has_fresh(config.domains[static_cast<size_t>(index)], domain);
}

// Prompts of finite data that have not been launched.
int64_t unlaunched(const State& state, const Policy& policy) {
  int64_t sum = 0;
  for (size_t i = 0; i < policy.domains.size(); ++i) {
    const DomainConfig& config = state.config.domains[i];
    if (endless(config) || config.epochs == 0 || config.prompts_per_step == 0) continue;
    const Domain& domain = policy.domains[i];
    sum += (config.epochs - domain.epoch) * config.prompts_per_epoch - domain.next;
  }
  return sum;
}

// Starts one group for `share`: queued ones first, then a fresh prompt. False: nothing is left.
bool launch(Context& context, PolicyId policy_id, Policy& policy, Round& round, int32_t index) {
  const DomainConfig& config = context.config().domains[static_cast<size_t>(index)];
  Domain& domain = policy.domains[static_cast<size_t>(index)];
  TaskId id;
  if (!domain.queued.empty()) {
    // Oldest prompt first, whatever order they were queued in.
    id = *domain.queued.begin();
    domain.queued.erase(domain.queued.begin());
  } else if (has_fresh(config, domain)) {
    id = take_fresh(config, domain, policy_id, index);
  } else {
    return false;
  }
  // A queued task is there already, with the launch number that relaunch() gave it.
  Task& task = policy.tasks[id];
  task.place = Place::kRunning;
  task.round = round.id;
  // Law 3.4. Without a floor a launch at publication would run on the weights that workers still
  // hold.
  task.weight_floor = policy.frontier;
  // Leases of what was before are never given again.
  task.members.assign(static_cast<size_t>(members_to_launch(context.config(), round)),
                      Member{.attempt = task.attempts});
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    context.state.waiting.insert({Lane::kTrain, member_id(id, task.launch, i)});
  }
  ++round.shares[static_cast<size_t>(index)].running;
  return true;
}

// Holds all that it keeps.
bool full(const Share& share) { return share.accepted == share.target; }

// Starts groups until every share has what it aims at; shares shrink when nothing more can come.
void fill(Context& context, PolicyId policy_id, Policy& policy, Round& round) {
  for (int32_t i = 0; i < std::ssize(round.shares); ++i) {
    Share& share = round.shares[static_cast<size_t>(i)];
    while (!full(share) && share.accepted + share.running < share.launch_target) {
      if (launch(context, policy_id, policy, round, i)) continue;
      // Nothing more can come: the share aims at what it has, so that the round can close and the
      // step run short (law 3.7).
      share.launch_target = share.accepted + share.running;
      share.target = std::min(share.target, share.launch_target);
    }
  }
}

// After any change of shares: groups start until every share has what it aims at, and rounds whose
// shares are all full close. A tail policy first ends what still runs in each full share, its round
// closed or not; the stop rule `all` leaves nothing there.
void advance_rounds(Context& context, PolicyId policy_id, Policy& policy) {
  for (Round& round : policy.rounds) fill(context, policy_id, policy, round);
  std::erase_if(policy.rounds,
                [](const Round& round) { return std::ranges::all_of(round.shares, full); });
}

// Null once it is closed.
Round* find_round(Policy& policy, RoundId id) {
  const auto found = std::ranges::find(policy.rounds, id, &Round::id);
  return found == policy.rounds.end() ? nullptr : &*found;
}

bool zero_signal(const Task& task) {
  std::optional<double> first;
  for (const Member& member : task.members) {
    // A member that failed for good says nothing of the spread of rewards.
    if (!member.reward) continue;
    if (first && *first != *member.reward) return false;
    first = member.reward;
  }
  return true;
}

bool step_complete(const State& state, const Policy& policy) {
  int64_t ready = 0;
  for (int32_t i = 0; i < std::ssize(policy.domains); ++i) {
    const int64_t in_domain = std::ssize(policy.domains[static_cast<size_t>(i)].ready);
    const int64_t q = state.config.domains[static_cast<size_t>(i)].prompts_per_step;
    // Short, and something is still to come: wait. Short and nothing reserved: the domain has run
    // dry.
    if (in_domain < q && reserved(policy, i) > 0) return false;
    ready += in_domain;
  }
  return ready > 0;
}

// Moves the step's groups out of the ready queues.
void form_batch(const State& state, Policy& policy, int64_t step) {
  Batch batch;
  for (size_t i = 0; i < policy.domains.size(); ++i) {
    std::deque<TaskId>& ready = policy.domains[i].ready;
    for (int64_t left = state.config.domains[i].prompts_per_step; left > 0 && !ready.empty();
         --left) {
      batch.tasks.push_back(ready.front());
      ready.pop_front();
    }
  }
  std::sort(batch.tasks.begin(), batch.tasks.end(),
            [](const TaskId& a, const TaskId& b) { return batch_order(a) < batch_order(b); });
  for (const TaskId& id : batch.tasks) {
    Task& task = policy.tasks.at(id);
    task.place = Place::kHandedOver;
    task.step = step;
  }
  policy.batches.emplace(step, std::move(batch));
}

}  // namespace

HandOver make_hand_over(PolicyId policy_id, const Policy& policy, int64_t step) {
  HandOver action;
  action.policy = policy_id;
  action.step = step;
  for (const TaskId& id : policy.batches.at(step).tasks) {
    const Task& task = policy.tasks.at(id);
    for (int32_t i = 0; i < std::ssize(task.members); ++i) {
      const Member& member = task.members[static_cast<size_t>(i)];
      // It failed for good: its group trains without it (law 3.5).
      if (!member.reward) continue;
      action.items.push_back({{member_id(id, task.launch, i), member.attempt}, *member.reward});
    }
  }
  return action;
}

int64_t members_to_launch(const Config& config, const Round& round) {
  switch (round.kind) {
    case RoundKind::kPlain:
      break;
  }
  return config.group_size;
}

void open_rounds(Context& context, PolicyId policy_id, Policy& policy) {
  const Config& config = context.config();
  if (!at_frontier(policy)) return;
  const int64_t step = policy.frontier + 1;
  if (config.steps > 0 && step > config.steps) return;
  if (std::ranges::find(policy.rounds, step, &Round::step) != policy.rounds.end()) return;
  Round round{.id = policy.last_round + 1, .kind = RoundKind::kPlain, .step = step, .shares = {}};
  bool any = false;
  for (int32_t i = 0; i < std::ssize(policy.domains); ++i) {
    // Below 0 only when `restarted` brought rules with less credit than is held.
    const int64_t room = std::max<int64_t>(0, credit(config, i) - credit_held(policy, i));
    round.shares.push_back({.target = room, .launch_target = room, .running = 0, .accepted = 0});
    any = any || (room > 0 && has_prompts(config, policy, i));
  }
  // Nothing to start: a round would open and close in one breath, at every event.
  if (!any) return;
  policy.last_round = round.id;
  policy.rounds.push_back(std::move(round));
  advance_rounds(context, policy_id, policy);
}

void end_task(Context& context, Policy& policy, const TaskId& id, TaskEnd end, int64_t step) {
  Task& task = policy.tasks.at(id);
  void_members(context, Lane::kTrain, id, task);
  // What was trained may be asked for again, until the oldest checkpoint covers it.
  if (end != TaskEnd::kTrained) release_bodies(context, Lane::kTrain, id, task);
  task.place = Place::kDone;
  task.end = end;
  task.step = step;
  ++domain_of(policy, id).ended_as(end);
  context.act(TaskDone{id, end, step});
}

void settle_task(Context& context, Policy& policy, const TaskId& id) {
  Task& task = policy.tasks.at(id);
  if (!std::ranges::all_of(task.members, settled)) return;
  Round* round = find_round(policy, task.round);
  TR_CHECK(round != nullptr, "{} runs in round {}, which is closed", to_string(id), task.round);
  Share& share = round->shares[static_cast<size_t>(id.domain)];
  --share.running;
  const int64_t rewarded = std::ranges::count(task.members, Phase::kRewarded, &Member::phase);
  // No sample of it is newer than the frontier: a checkpoint of the next version makes its end
  // final.
  const int64_t step = policy.frontier + 1;
  // Failed before filtered: too few rewards are equal by chance.
  if (rewarded < context.config().members_needed()) {
    end_task(context, policy, id, TaskEnd::kFailed, step);
  } else if (context.config().replace_zero_signal && zero_signal(task)) {
    end_task(context, policy, id, TaskEnd::kFiltered, step);
  } else {
    ++share.accepted;
    task.place = Place::kReady;
    domain_of(policy, id).ready.push_back(id);
  }
  advance_rounds(context, id.policy, policy);
}

void hand_over(Context& context, PolicyId policy_id, Policy& policy) {
  if (!policy.wanted || policy.handed) return;
  if (trainer_of(context.state, policy) == nullptr || in_quarantine(context.state, policy.trainer))
    return;
  const int64_t step = policy.published + 1;
  if (*policy.wanted != step) return;
  // A batch that was formed before is given as it was: nobody installs in a replay, so it moves no
  // weights under an evaluation either.
  if (!policy.batches.contains(step)) {
    if (!at_frontier(policy) || policy.evaluation) return;
    if (context.config().steps > 0 && step > context.config().steps) return;
    if (!step_complete(context.state, policy)) return;
    form_batch(context.state, policy, step);
  }
  // Until it publishes, asks again, or is lost.
  policy.handed = true;
  policy.batches.at(step).handed = context.state.now;
  context.tell(policy.trainer, make_hand_over(policy_id, policy, step));
}

void withdraw_end(Context& context, Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  if (task.place != Place::kDone) return;
  --domain_of(policy, id).ended_as(task.end);
  context.act(TaskWithdrawn{id});
}

void relaunch(Context& context, Policy& policy, const TaskId& id) {
  Task& task = policy.tasks.at(id);
  void_members(context, Lane::kTrain, id, task);
  release_bodies(context, Lane::kTrain, id, task);
  // Another launch has other names for its members: what the old one's leases still bring is
  // fenced.
  task = Task{.place = Place::kQueued, .launch = task.launch + 1, .members = {}};
  domain_of(policy, id).queued.insert(id);
}

// The same launch, whose random numbers are those of its members: the same tokens come again.
void sample_again(Context& context, Policy& policy, const TaskId& id) {
  const Task& task = policy.tasks.at(id);
  const int32_t launch = task.launch;
  const int32_t attempts = std::ranges::max(task.members, {}, &Member::attempt).attempt;
  relaunch(context, policy, id);
  policy.tasks.at(id).launch = launch;
  policy.tasks.at(id).attempts = attempts;
}

void let_go(Context& context, Policy& policy, int64_t version) {
  Release release;
  for (auto task = policy.tasks.begin(); task != policy.tasks.end();) {
    // Those that the end of the run cut off are kept: a run that is continued goes back to them.
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
  policy.lineage.erase(policy.lineage.begin(), policy.lineage.lower_bound(version));
  if (!release.bodies.empty()) context.act(std::move(release));
}

void on_bodies_lost(Context& context, const BodiesLost& event) {
  for (const BodyId& body : event.bodies) {
    const MemberId& member = body.lease.member;
    Task* task = find_task(context.state, body.lane, member);
    // Of an attempt that no longer counts: nothing rests on it.
    if (task == nullptr || !holds_body(context.state, body)) continue;
    Policy& policy = context.state.policies.at(member.policy);
    if (body.lane == Lane::kEval) {
      task->members[static_cast<size_t>(member.member)].has_body = false;
      evaluate_anew(context, policy, policy.evaluation->version);
      continue;
    }
    const TaskId id = task_of(member);
    // Kept for an older checkpoint alone, which can no longer be gone back to.
    if (task->place == Place::kDone && task->step <= policy.durable) {
      let_go(context, policy, policy.durable);
      continue;
    }
    if (task->place != Place::kRunning && task->place != Place::kReady) {
      return halt(
          context,
          fmt::format("the body of {} is missing or damaged, and its step was trained: start "
                      "again from an older checkpoint in a new run directory",
                      to_string(body.lease)));
    }
    task->members[static_cast<size_t>(member.member)].has_body = false;
    // Its place in an open round is free again, for the queued prompt itself; in a closed one its
    // credit is, and the next round takes it.
    if (Round* round = find_round(policy, task->round); round != nullptr) {
      Share& share = round->shares[static_cast<size_t>(id.domain)];
      --(task->place == Place::kRunning ? share.running : share.accepted);
    }
    std::erase(domain_of(policy, id).ready, id);
    sample_again(context, policy, id);
    advance_rounds(context, id.policy, policy);
  }
}

bool exhausted(const State& state, const Policy& policy) {
  if (!at_frontier(policy) || !policy.rounds.empty()) return false;
  // A batch that is handed over and not published still is to be trained.
  if (policy.batches.upper_bound(policy.frontier) != policy.batches.end()) return false;
  for (int32_t i = 0; i < std::ssize(policy.domains); ++i) {
    if (!policy.domains[static_cast<size_t>(i)].ready.empty()) return false;
    const bool used = state.config.domains[static_cast<size_t>(i)].prompts_per_step > 0;
    if (used && has_prompts(state.config, policy, i)) return false;
  }
  return true;
}

int64_t cut_off(Context& context, Policy& policy) {
  std::vector<TaskId> live;
  for (const auto& [id, task] : policy.tasks) {
    if (task.place != Place::kDone) live.push_back(id);
  }
  for (Domain& domain : policy.domains) {
    domain.queued.clear();
    domain.ready.clear();
  }
  policy.rounds.clear();
  for (const TaskId& id : live)
    end_task(context, policy, id, TaskEnd::kUnreached, policy.published);
  // Those that were never launched have no task to end: they are only counted.
  int64_t unreached = unlaunched(context.state, policy);
  for (Domain& domain : policy.domains) unreached += domain.ended_as(TaskEnd::kUnreached);
  return unreached;
}

}  // namespace tailrace::scheduler
