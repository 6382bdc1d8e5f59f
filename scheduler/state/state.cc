#include "scheduler/state/state.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace tailrace::scheduler {

State::State(Config run, int num_policies) : config(std::move(run)) {
  for (PolicyId id = 0; id < num_policies; ++id) policies[id].domains.resize(config.domains.size());
}

Need need_of(const State& state, Lane lane, const TaskId& id, const Task& task) {
  return {lane, id.policy, task.weight_floor, state.config.pool_of(lane, id.domain)};
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

// What is unknown goes before all that is known: its probe runs, and mostly has run longer by now
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
  const auto before = std::exchange(state.waiting, {});
  for (const auto& [need, queue] : before)
    for (const Waiting& waiting : queue) add_waiting(state, waiting.work);
}

int64_t num_waiting(const State& state) {
  int64_t count = 0;
  for (const auto& [need, members] : state.waiting) count += std::ssize(members);
  return count;
}

void State::after_reading() {
  make_index(*this);
  follow_evaluations(*this);
  away = find_away(*this);
  for (auto& [id, policy] : policies) policy.told_items = count_told_items(policy);
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

int64_t row_of(const State& state, const TaskId& id) {
  return tailrace::row_of(id.prompt,
                          state.config.domains[static_cast<size_t>(id.domain)].prompts_per_epoch);
}

bool is_broken(const State& state, Lane lane, const TaskId& id) {
  const BrokenTasks& broken =
      state.policies.at(id.policy).domains[static_cast<size_t>(id.domain)].broken;
  return lane == Lane::kEval ? broken.held_out.contains(id.prompt)
                             : broken.rows.contains(row_of(state, id));
}

bool all_broken(const DomainConfig& config, const Domain& domain) {
  return config.prompts_per_epoch > 0 && std::ssize(domain.broken.rows) >= config.prompts_per_epoch;
}

bool settled(const Member& member) {
  return member.phase == Phase::kRewarded || member.phase == Phase::kFailed ||
         member.phase == Phase::kSurplus;
}

std::optional<int64_t> oldest_version(const Task& task) {
  std::optional<int64_t> oldest;
  for (const Member& member : task.members) {
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
  return config.eval.holds_training ||
         (policy.evaluation->version < policy.frontier && config.evaluates(policy.frontier));
}

namespace {

// By what it has sampled by last, also if that is not proved in this session.
bool is_past(const Policy& policy, const Worker& worker, int64_t version) {
  return worker.held > version && on_lineage(policy, worker.held, worker.digest);
}

}  // namespace

int64_t wanted_version(const State& state, const Policy& policy, const WorkerId& id,
                       const Worker& worker) {
  if (!policy.evaluation || policy.evaluation->version >= policy.frontier) return policy.frontier;
  const int64_t evaluated = policy.evaluation->version;
  if (state.leases.holds_held_out(id)) return evaluated;
  const bool waits = state.held_out.contains({worker.policy, worker.site.pool}) ||
                     state.held_out.contains({worker.policy, ""});
  const bool comes =
      !is_past(policy, worker, evaluated) || policy.evaluation->recalled.contains(id);
  return waits && comes ? evaluated : policy.frontier;
}

std::optional<int64_t> next_version(const State& state, const Policy& policy, const WorkerId& id,
                                    const Worker& worker) {
  const int64_t wanted = wanted_version(state, policy, id, worker);
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

bool expects_result(const State& state, const WorkerId& worker, Lane lane, const LeaseId& lease) {
  const Lease* held = state.leases.find({lane, lease.member});
  return held != nullptr && expects_result(*held, worker, lease) && state.workers.contains(worker);
}

bool expects_result(const Lease& held, const WorkerId& worker, const LeaseId& lease) {
  if (held.kind != LeaseKind::kGenerate) return false;
  if (held.attempt == lease.attempt) return held.worker == worker;
  return held.before == Lease::Before{worker, lease.attempt};
}

bool expects_verdict(const State& state, const Reward& reward) {
  const Lease* held = state.leases.find({reward.lane, reward.lease.member});
  return held != nullptr && held->kind == LeaseKind::kVerify &&
         held->attempt == reward.lease.attempt && held->worker == reward.worker &&
         held->verify_attempt == reward.verify_attempt;
}

namespace {

// Another version or other bytes than asked for: still waiting; the deadline will end that.
template <class Answer>
bool answers(const State& state, const Answer& event, Install::Phase phase) {
  const auto it = state.workers.find(event.worker);
  if (it == state.workers.end() || it->second.policy != event.policy) return false;
  const std::optional<Install>& install = it->second.install;
  return install && install->phase == phase && install->version == event.version &&
         install->digest == event.digest;
}

}  // namespace

bool expects(const State& state, const Staged& event) {
  return answers(state, event, Install::Phase::kStaging);
}

bool expects(const State& state, const StageProgress& event) {
  return answers(state, event, Install::Phase::kStaging) &&
         event.bytes > state.workers.at(event.worker).install->bytes;
}

bool expects(const State& state, const Installed& event) {
  return answers(state, event, Install::Phase::kSwitching);
}

bool expects(const State& state, const InstallFailed& event) {
  const auto it = state.workers.find(event.worker);
  // Of an install that has ended, or was replaced. A copy of a report whose version is being
  // installed again cannot be told from a new one (law 14.4).
  return it != state.workers.end() && is_asked(it->second) &&
         it->second.install->version == event.version && it->second.install->digest == event.digest;
}

const Policy* policy_of_trainer(const State& state, PolicyId id, const WorkerId& worker) {
  const auto it = state.policies.find(id);
  return it != state.policies.end() && it->second.trainer == worker ? &it->second : nullptr;
}

bool expects(const State& state, const RolledBack& event) {
  const auto it = state.policies.find(event.policy);
  const auto worker = state.workers.find(event.worker);
  if (it == state.policies.end() || worker == state.workers.end()) return false;
  const Policy& policy = it->second;
  if (worker->second.rank != 0) return false;
  // One that waits for its turn.
  if (policy.trainer != event.worker && trainer_of(state, policy) != nullptr)
    return !worker->second.greeting;
  if (policy.trainer != event.worker || policy.trainer_incarnation != worker->second.incarnation)
    return true;
  // A process never loses versions.
  if (event.version < policy.published) return false;
  if (!policy.greeted || event.version > policy.published) return true;
  return event.version >= 0 && !(is_master(policy, event.version, event.master) &&
                                 on_lineage(policy, event.version, event.digest));
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

bool expects(const State& state, const Published& event) {
  const Policy* policy = policy_of_trainer(state, event.policy, event.worker);
  if (policy == nullptr || event.version < 0) return false;
  // The first one may have any number: the trainer may begin from a checkpoint.
  if (policy->published < 0) return true;
  return comes_next(*policy, event.version);
}

bool expects(const State& state, const Durable& event) {
  const Policy* policy = policy_of_trainer(state, event.policy, event.worker);
  return policy != nullptr && event.version > policy->durable && event.version <= policy->published;
}

bool expects(const State& state, const TrainerWants& event) {
  if (const Policy* policy = policy_of_trainer(state, event.policy, event.worker))
    return event.step == policy->published + 1 && policy->wanted != event.step;
  // One that waits for its turn asks once; it is answered when the turn comes.
  const auto worker = state.workers.find(event.worker);
  return worker != state.workers.end() && worker->second.greeting && !worker->second.question;
}

bool expects(const State& state, const WorkerFailed& event) {
  const auto worker = state.workers.find(event.worker);
  if (worker == state.workers.end()) return false;
  return !state.begun || !in_quarantine(state, event.worker) || worker->second.leased > 0;
}

bool expects(const State& state, const Stalled& event) {
  const auto it = state.workers.find(event.worker);
  return it != state.workers.end() && it->second.role == Role::kRollout &&
         it->second.session == event.session && it->second.stalled != event.stalled;
}

bool expects(const State& state, const TurnsStored& event) {
  const Lease* lease = state.leases.find({event.lane, event.lease.member});
  if (lease == nullptr || !state.workers.contains(event.worker)) return false;
  if (lease->kind != LeaseKind::kGenerate || lease->worker != event.worker ||
      lease->attempt != event.lease.attempt)
    return false;
  const Task& task = *find_task(state, event.lane, event.lease.member);
  const auto& prefix = task.members[static_cast<size_t>(event.lease.member.member)].prefix;
  // Each renews the lease: more turns are more tokens. Fewer than it began with are of another life
  // of this lease, which a loss of power has undone.
  return event.turns <= event.tokens && event.tokens > (prefix ? prefix->tokens : 0) &&
         event.turns > std::max(lease->turns, prefix ? prefix->turns : 0);
}

StepStart step_start_at(const Policy& policy, Time now) {
  StepStart start{.time = now, .attempts = policy.attempts, .filtered = {}};
  for (const Domain& domain : policy.domains) {
    start.filtered.push_back(domain.ended_as(TaskEnd::kFiltered));
    start.failed += domain.ended_as(TaskEnd::kFailed);
    start.stale += domain.ended_as(TaskEnd::kStale);
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
  if (state.config.trainer_ranks > 1 && policy.formation == 0) return false;
  return is_fit(policy.trainer) &&
         std::ranges::all_of(policy.ranks, [&](const auto& rank) { return is_fit(rank.second); });
}

bool saved(const Policy& policy) {
  return policy.published < 0 || policy.durable >= policy.published;
}

namespace {

// Null: nothing is held against it.
const Health* health_of(const State& state, const WorkerId& worker) {
  const auto it = state.health.find(worker);
  return it == state.health.end() ? nullptr : &it->second;
}

// It ends by time alone; no event has to take it back.
bool in_quarantine(const State& state, const Health* health) {
  return health != nullptr && health->until > state.now;
}
bool on_trial(const State& state, const Health* health) {
  return health != nullptr && health->quarantines > 0 && health->until <= state.now;
}
bool has_faults(const Health* health) {
  return health != nullptr && (health->faults > 0 || health->quarantines > 0);
}
int64_t usable_slots(const State& state, const Health* health, const Worker& worker) {
  if (in_quarantine(state, health)) return 0;
  // A worker that still fails takes one sample with it, not all that it has slots for (law 7.3).
  return on_trial(state, health) ? 1 : worker.slots;
}

}  // namespace

bool is_resting(const State& state, const Worker& worker) {
  return worker.rest && worker.rest->until > state.now;
}

bool in_quarantine(const State& state, const WorkerId& worker) {
  return in_quarantine(state, health_of(state, worker));
}

bool on_trial(const State& state, const WorkerId& worker) {
  return on_trial(state, health_of(state, worker));
}

bool has_faults(const State& state, const WorkerId& worker) {
  return has_faults(health_of(state, worker));
}

Time doubled(Time first, int64_t times, Time longest) {
  Time time = std::min(first, longest);
  // Step by step: no number of times can overflow.
  for (; times > 0 && time < longest; --times) time = std::min(2 * time, longest);
  return time;
}

int64_t usable_slots(const State& state, const WorkerId& id, const Worker& worker) {
  return usable_slots(state, health_of(state, id), worker);
}

bool holds_body(const State& state, const BodyId& id) {
  const MemberId& member = id.lease.member;
  const Task* task = find_task(state, id.lane, member);
  if (task == nullptr) return false;
  const Member& found = task->members[static_cast<size_t>(member.member)];
  if (id.turns > 0)
    return found.prefix && found.prefix->attempt == id.lease.attempt &&
           found.prefix->turns == id.turns;
  // Of a member one body counts, that of its newest attempt.
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

// Of tasks that are done as well, until the oldest checkpoint covers their step: a rollback hands
// their batch over once more.
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

namespace {

Time last_time(const Health& health) { return std::max(health.until, health.left); }

// It samples by weights of the present lineage, nobody is about to change them, and it is not to go
// back to older ones.
bool is_open(const State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  return policy != state.policies.end() && worker.version >= 0 &&
         !(worker.install && worker.install->phase == Install::Phase::kSwitching) &&
         on_lineage(policy->second, worker.version, worker.digest) &&
         worker.version <= wanted_version(state, policy->second, id, worker);
}

// Nothing needs the weights that it has: no evaluation of them, and where installs wait for what
// runs, or lead back to older weights, no lease.
bool may_switch(const State& state, const Policy& policy, const WorkerId& id,
                const Worker& worker) {
  const int64_t version = worker.install->version;
  const int64_t wanted = wanted_version(state, policy, id, worker);
  if (is_past(policy, worker, version)) return version == wanted && worker.leased == 0;
  if (version > wanted) return false;
  return state.config.mode.install != InstallWhen::kDrained || worker.leased == 0;
}

InstallStep step_of(const State& state, const WorkerId& id, const Health* health,
                    const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  if (worker.role != Role::kRollout || !worker.connected || in_quarantine(state, health) ||
      policy == state.policies.end())
    return InstallStep::kNone;
  const std::optional<int64_t> next =
      is_resting(state, worker) ? std::nullopt : next_version(state, policy->second, id, worker);
  if (!worker.install) return next ? InstallStep::kStage : InstallStep::kNone;
  const Install& install = *worker.install;
  // The weights of another lineage are not worth the wait.
  if (!on_lineage(policy->second, install.version, install.digest))
    return next ? InstallStep::kStage : InstallStep::kForget;
  // What was asked for is left to end first.
  if (install.phase != Install::Phase::kStaged) return InstallStep::kNone;
  // Also to one that is not the newest any more: versions may come faster than they are staged.
  if (may_switch(state, policy->second, id, worker)) return InstallStep::kSwitch;
  return next && *next != install.version ? InstallStep::kStage : InstallStep::kNone;
}

// It will hold the wanted weights in a moment.
bool is_installing(const State& state, const WorkerId& id, const Worker& worker) {
  const auto policy = state.policies.find(worker.policy);
  return worker.install && policy != state.policies.end() &&
         (worker.install->phase == Install::Phase::kSwitching ||
          may_switch(state, policy->second, id, worker));
}

Index::Entry entry_of(const State& state, const WorkerId& id, const Worker& worker) {
  Index::Entry entry;
  const Health* health = health_of(state, id);
  const bool rollout = worker.role == Role::kRollout;
  const bool moves = rollout && !worker.stalled;
  if (rollout) entry.pool = {worker.policy, worker.site.pool};
  entry.has_faults = has_faults(health);
  if (worker.connected) entry.room = usable_slots(state, health, worker) - worker.leased;
  entry.verifies = worker.role == Role::kReward;
  if (worker.connected && moves && is_open(state, id, worker)) entry.version = worker.version;
  // One that was silent would hold what it gets until its deadline, so it gets only what is left.
  entry.proving =
      entry.version && entry.room > 0 && on_trial(state, health) && health->fault != Fault::kSilent;
  // One that has failed, or stands still, is not waited for: it may hang.
  if (moves && worker.connected && !entry.has_faults)
    entry.load = {worker.slots, worker.leased, is_installing(state, id, worker) ? 1 : 0};
  entry.stuck = worker.stalled && worker.leased > 0;
  entry.step = step_of(state, id, health, worker);
  if (!worker.connected) {
    entry.deadline = worker.reconnect_deadline;
  } else if (is_asked(worker)) {
    entry.deadline = worker.install->deadline;
  }
  if (is_resting(state, worker)) entry.wake = worker.rest->until;
  if (in_quarantine(state, health))
    entry.wake = std::min(entry.wake.value_or(health->until), health->until);
  entry.plain = worker.connected && !worker.stalled && !worker.install &&
                (health == nullptr || health->quarantines == 0);
  return entry;
}

}  // namespace

void touch(State& state, const WorkerId& id) {
  const auto worker = state.workers.find(id);
  if (worker != state.workers.end()) touch(state, id, worker->second);
}

void touch(State& state, const WorkerId& id, Worker& worker) {
  Index::Entry now = entry_of(state, id, worker);
  state.index.set(id, worker.indexed, now);
  worker.indexed = std::move(now);
}

void add_leases(State& state, const WorkerId& id, Worker& worker, int64_t count) {
  worker.leased += count;
  if (worker.indexed.plain) return state.index.add_leases(id, worker.indexed, count);
  touch(state, id, worker);
}

void erase_worker(State& state, const WorkerId& id) {
  const auto worker = state.workers.find(id);
  state.index.set(id, worker->second.indexed, {});
  state.workers.erase(worker);
  if (const Health* health = health_of(state, id)) state.away.insert({last_time(*health), id});
}

void leave_away(State& state, const WorkerId& id) {
  if (const Health* health = health_of(state, id)) state.away.erase({last_time(*health), id});
}

std::set<std::pair<Time, WorkerId>> find_away(const State& state) {
  std::set<std::pair<Time, WorkerId>> away;
  for (const auto& [id, health] : state.health) {
    if (!state.workers.contains(id)) away.insert({last_time(health), id});
  }
  return away;
}

void make_index(State& state) {
  state.index = {};
  for (auto& [id, worker] : state.workers) {
    worker.indexed = {};
    touch(state, id, worker);
  }
}

std::set<PoolId> find_held_out(const State& state) {
  std::set<PoolId> found;
  // What stands still waits too, as long as it may be moved (law 8.6).
  for (const WorkerId& id : state.index.stuck()) {
    if (!state.leases.holds_held_out(id)) continue;
    for (const WorkId& work : state.leases.of(id)) {
      if (work.lane != Lane::kEval) break;  // these sort first
      const Task& task = *find_task(state, work.lane, work.member);
      const Member& member = task.members[static_cast<size_t>(work.member.member)];
      if (member.moves < state.config.retries.returned &&
          task.weight_floor < state.policies.at(work.member.policy).frontier)
        found.insert({work.member.policy, state.config.pool_of(work.lane, work.member.domain)});
    }
  }
  for (const auto& [need, members] : state.waiting) {
    if (need.lane != Lane::kEval) break;  // these sort first
    const Policy& policy = state.policies.at(need.policy);
    if (need.floor < policy.frontier) found.insert({need.policy, need.pool});
  }
  return found;
}

bool follow_evaluations(State& state) {
  std::set<PoolId> held_out = find_held_out(state);
  if (held_out == state.held_out) return false;
  state.held_out = std::move(held_out);
  make_index(state);
  return true;
}

bool index_is_right(const State& state) {
  Index index;
  for (const auto& [id, worker] : state.workers) {
    const Index::Entry entry = entry_of(state, id, worker);
    if (entry != worker.indexed) return false;
    index.set(id, {}, entry);
  }
  return index == state.index;
}

}  // namespace tailrace::scheduler
