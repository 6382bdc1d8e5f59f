#include "tests/scheduler/decide/world.h"

#include <algorithm>

#include "core/base/error.h"

namespace tailrace::scheduler {

namespace {

// Any point of the policy space that can be run.
Mode random_mode(Rng& rng) {
  constexpr Ratio kAhead[] = {{0, 1}, {1, 2}, {1, 1}, {3, 2}, {2, 1}, {3, 1}, {4, 1}};
  constexpr Ratio kLaunch[] = {{1, 1}, {5, 4}, {3, 2}, {2, 1}};
  while (true) {
    Mode mode;
    if (rng.chance(0.5)) mode.ahead = kAhead[rng.below(std::ssize(kAhead))];
    if (rng.chance(0.4)) mode.launch_members = kLaunch[rng.below(std::ssize(kLaunch))];
    if (rng.chance(0.5)) {
      mode.launch_prompts = kLaunch[1 + rng.below(std::ssize(kLaunch) - 1)];
      mode.tail = rng.chance(0.5) ? TailPolicy::kDiscard : TailPolicy::kKeep;
    }
    mode.on_stale = static_cast<OnStale>(rng.below(3));
    // Often the tightest bound that is legal.
    mode.max_staleness = rng.chance(0.5) ? rng.below(4) : 0;
    if (rng.chance(0.25)) mode.install = InstallWhen::kDrained;
    if (rng.chance(0.4)) mode.hand_over = HandOverBy::kGroups;
    if (rng.chance(0.3)) mode.dispatch = Dispatch::kLeastLoaded;
    if (rng.chance(0.4)) mode.dispatch_order = DispatchOrder::kLongestFirst;
    for (; mode.max_staleness < 6; ++mode.max_staleness) {
      try {
        mode.validate();
        return mode;
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace

std::string pool_name(int64_t index) { return std::string(1, static_cast<char>('a' + index)); }

Config random_config(Rng& rng, int64_t num_pools) {
  Config config;
  config.domains.clear();
  const int64_t num_domains = 1 + rng.below(2);
  // One that takes no part.
  const int64_t idle = num_domains > 1 && rng.chance(0.2) ? rng.below(num_domains) : -1;
  const bool by_steps = rng.chance(0.7);
  for (int64_t i = 0; i < num_domains; ++i) {
    DomainConfig domain{.prompts_per_step = i == idle ? 0 : 1 + rng.below(3)};
    if (num_pools > 1 && rng.chance(0.6)) domain.pool = pool_name(rng.below(num_pools));
    if (!by_steps || rng.chance(0.6)) {
      domain.prompts_per_epoch = 1 + rng.below(7);
      domain.epochs = !by_steps || rng.chance(0.7) ? 1 + rng.below(3) : 0;
    }
    config.domains.push_back(domain);
  }
  config.steps = by_steps ? 1 + rng.below(6) : 0;
  config.group_size = 1 + rng.below(4);
  config.replace_zero_signal = config.group_size > 1 && rng.chance(0.4);
  config.retries = {
      .env_failed = rng.below(3), .verifier_failed = rng.below(3), .lost = 1 + rng.below(6)};
  config.deadlines = {
      .lease = seconds(20), .verify = seconds(10), .install = seconds(15), .reconnect = seconds(5)};
  config.save.interval_steps = 1 + rng.below(4);
  if (rng.chance(0.5)) {
    config.eval = {.prompts = 1 + rng.below(3),
                   .group_size = 1 + rng.below(2),
                   .interval_steps = rng.below(4)};
  }
  config.quarantine = {
      .faults = 1 + rng.below(4), .first = seconds(1), .longest = seconds(8), .limit = 1 << 30};
  config.breaker = {.window = 0, .share = 1};
  if (rng.chance(0.8)) config.mode = random_mode(rng);
  if (rng.chance(0.3)) config.trainer_ranks = static_cast<int32_t>(2 + rng.below(2));
  config.validate();
  return config;
}

World::World(uint64_t seed)
    : rng_(seed),
      num_pools_(1 + rng_.below(3)),
      state_(random_config(rng_, num_pools_)),
      snapshot_(to_bytes(state_)) {
  faults_ = rng_.chance(0.8);
  alarms_ = rng_.chance(0.3) ? 0.4 : 0.05;
  keep_last_ = 1 + rng_.below(3);
  // One row of several: with all of them the run would halt.
  if (rng_.chance(0.4) && state_.config.domains[0].prompts_per_epoch != 1) {
    broken_row_ = rng_.below(3);
    broken_for_verifiers_ = rng_.chance(0.5);
  }
  // In each pool somebody.
  const int64_t workers = std::max(num_pools_, 1 + rng_.below(3));
  for (int64_t i = 0; i < workers; ++i)
    start_worker(fmt::format("w{}", i), Role::kRollout, pool_of(i));
  for (int i = 0; i < 1 + rng_.below(2); ++i)
    start_worker(fmt::format("r{}", i), Role::kReward, "");
  start_trainer();
  for (int32_t rank = 1; rank < state_.config.trainer_ranks; ++rank)
    ranks_[fmt::format("t{}", rank)].rank = rank;
  revive_ranks();
}

bool World::run() {
  for (int event = 0; event < 20000; ++event) {
    if (event == 1500) faults_ = false;  // all calms down in the end
    if (!failure.empty()) return false;
    if (state_.ended && state_.end->reason != RunEnd::Reason::kStopped && wire_.empty() &&
        trainer_queue_.empty() && service_.empty()) {
      // A person may want more of it.
      if (state_.end->reason == RunEnd::Reason::kSteps && seen["more steps"] < 2 &&
          rng_.chance(0.3)) {
        restart(/*power_lost=*/false);
      } else if (!faults_ || rng_.chance(0.5)) {
        return check_accounts();
      }
    }
    step();
  }
  return fail("the run did not end");
}

bool World::fail(std::string why) {
  if (failure.empty()) failure = std::move(why);
  return false;
}

void World::note(const Event& event, const Actions& actions) {
  const auto first_word = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  log.push_back("<- " + describe(event));
  ++seen[first_word(describe(event))];
  for (const Action& action : actions) {
    log.push_back("   -> " + describe(action));
    ++seen[first_word(describe(action))];
  }
  while (log.size() > 400) log.pop_front();
  const Policy& policy = state_.policies.at(0);
  seen["published while evaluated"] += std::holds_alternative<Published>(event) &&
                                       evaluating(policy) &&
                                       policy.evaluation->version < policy.frontier;
  seen["replay"] += std::holds_alternative<Published>(event) && policy.published < policy.frontier;
  const auto ended = [&](TaskEnd end) {
    return policy.domains[0].ended[static_cast<size_t>(end)] > 0;
  };
  seen["filtered"] += ended(TaskEnd::kFiltered);
  seen["failed"] += ended(TaskEnd::kFailed);
  seen["unreached"] += ended(TaskEnd::kUnreached);
  seen["stale"] += ended(TaskEnd::kStale);
  seen["broken"] += ended(TaskEnd::kBroken);
  for (const auto& [id, task] : policy.tasks) {
    seen["broken row of which a group is complete"] +=
        task.place == Place::kReady && is_broken(state_, Lane::kTrain, id);
  }
  seen["broken held-out"] += !policy.domains[0].broken.held_out.empty();
  for (const Domain& domain : policy.domains) {
    seen["carried"] += !domain.carried.empty();
    seen["parked"] += !domain.parked.empty();
    seen["long queue"] += !domain.long_queue.empty();
  }
  for (const Round& round : policy.rounds) ++seen[fmt::format("{} round", name_of(round.kind))];
  seen["several rounds"] += policy.rounds.size() > 1;
  const Mode& mode = state_.config.mode;
  const bool keeps = mode.tail == TailPolicy::kKeep;
  seen["keep and wait"] += keeps && mode.on_stale == OnStale::kWait;
  seen["keep and fork"] += keeps && !only<Forked>(actions).empty();
  seen["drop in rounds"] += mode.on_stale == OnStale::kDrop && policy.rounds.size() > 1;
  seen["evaluation cut by a fork"] +=
      policy.evaluation && !only<EvalDone>(actions).empty() && policy.eval_launch > 0;
}

void World::check(const Event& event, const Actions& actions) {
  if (const auto violation = find_violation(state_)) fail(*violation);
  // Whatever was possible has been done: the same moment once more changes nothing.
  if (rng_.chance(0.2)) {
    State again = state_;
    const Actions more = decide(again, Tick{}, state_.now);
    if (!more.empty() || !(again == state_)) {
      fail("after " + describe(event) +
           " a tick of the same moment does something: " + describe_all(more));
    }
  }
  if (rng_.chance(0.02)) check_deadlines();
  check_stalled();
  for (const Action& action : actions) {
    const auto* hold = std::get_if<Hold>(&action);
    if (hold != nullptr && std::ssize(hold->leases) > nodes_.at(hold->worker).slots)
      fail("a worker holds more than its slots");
    const auto* grant = std::get_if<Grant>(&action);
    const bool newest_only = state_.config.mode.install == InstallWhen::kDrained ||
                             state_.config.mode.on_stale == OnStale::kWait;
    if (grant != nullptr && is_new(*grant)) check_order(*grant);
    if (grant != nullptr && is_new(*grant)) check_pool(*grant);
    if (grant != nullptr && grant->lane == Lane::kTrain && newest_only && is_new(*grant) &&
        state_.workers.at(grant->worker).version != state_.policies.at(0).frontier)
      fail("granted on weights that are not the newest");
    if (grant != nullptr && grant->prefix) check_prefix(*grant);
    if (const auto* change = std::get_if<Switch>(&action)) check_switch(*change);
  }
}

void World::check_pool(const Grant& grant) {
  const WorkId work{grant.lane, grant.lease.member};
  const Worker& worker = state_.workers.at(grant.worker);
  if (!may_sample(worker, work)) fail("granted outside its pool");
  const bool bound =
      !state_.config.domains.at(static_cast<size_t>(work.member.domain)).pool.empty();
  seen["granted in its pool"] += bound;
  seen["granted in any pool"] += !bound && !worker.site.pool.empty();
}

// Law 9.6.
void World::check_switch(const Switch& change) {
  const Worker& worker = state_.workers.at(change.worker);
  const Policy& policy = state_.policies.at(0);
  if (state_.config.mode.install == InstallWhen::kDrained && worker.leased > 0)
    fail("an install under work that has not ended");
  if (change.version > wanted_version(state_, policy, worker.site.pool))
    fail("switched while the old weights are wanted");
  if (!on_lineage(policy, change.version, change.digest)) fail("switched to abandoned weights");
}

// Law 1.5.
bool World::may_sample(const Worker& worker, const WorkId& work) const {
  const std::string& pool = state_.config.domains.at(static_cast<size_t>(work.member.domain)).pool;
  return pool.empty() || pool == worker.site.pool;
}

// What still waits could not have gone there, or its turn comes later (law 6.9).
void World::check_order(const Grant& grant) {
  const WorkId work{grant.lane, grant.lease.member};
  if (state_.leases.at(work).before) return;  // it has not waited
  const Task& task = *find_task(state_, work.lane, work.member);
  const auto queue = state_.waiting.find(need_of(state_, work.lane, task_of(work.member), task));
  if (queue == state_.waiting.end()) return;
  const Waiting granted{rank_of(state_, work.lane, task, work.member.member), work};
  bool overtakes = false;
  for (const Waiting& waiting : queue->second) {
    const Member& member = member_of(state_, waiting.work);
    const auto rest = member.rests.find(grant.worker);
    const bool avoids = rest != member.rests.end() && rest->second > state_.now;
    // One that is to prove itself begins with what has not failed yet (law 7.3).
    const bool proves = on_trial(state_, grant.worker) && tried_before(member);
    if (waiting < granted && !avoids && !proves)
      return (void)fail(to_string(work.member) + " goes before its turn");
    overtakes = overtakes || (granted < waiting && waiting.work < work);
  }
  seen["overtakes"] += overtakes;
  seen["the longest goes first"] += overtakes && task.longest >= 0;
}

// Nobody says anything any more: each tick comes at the time that the scheduler asked for, and none
// leaves something due behind, or the service would spin.
void World::check_deadlines() {
  State later = state_;
  for (int i = 0; i < 20; ++i) {
    const auto next = next_deadline(later);
    // Nothing is due before: a deadline that is left out would leave the service asleep.
    State before = later;
    const Time idle = next ? *next - Time(1) : later.now + std::chrono::hours(1);
    const bool acts = !decide(before, Tick{}, idle).empty();
    // The clock, and what follows from it alone.
    before.now = later.now;
    before.index = later.index;
    for (auto& [id, worker] : before.workers)
      if (later.workers.contains(id)) worker.indexed = later.workers.at(id).indexed;
    if (acts || !(before == later)) fail("something is due before the next deadline");
    if (!next) break;
    if (*next <= later.now) fail("a deadline that has passed");
    (void)decide(later, Tick{}, *next);
    ++seen["deadline"];
    if (const auto violation = find_violation(later)) fail("at a deadline: " + *violation);
    const State settled = later;
    if (!decide(later, Tick{}, *next).empty() || !(later == settled))
      fail("a second tick at a deadline does something");
  }
}

// Nothing stays with a worker that stands still and would fit one that moves. Only where that is
// plain; the finer points are the law's (6.6).
void World::check_stalled() {
  if (!state_.halted.empty() || state_.end || state_.stopping) return;
  for (const auto& [work, lease] : state_.leases.in_order()) {
    if (lease.kind != LeaseKind::kGenerate || !state_.workers.at(lease.worker).stalled) continue;
    const Policy& policy = state_.policies.at(work.member.policy);
    const Task& task = *find_task(state_, work.lane, work.member);
    const Member& member = task.members.at(static_cast<size_t>(work.member.member));
    if (state_.index.load_of(work.member.policy).installing > 0) continue;
    if (member.moves >= state_.config.retries.returned) continue;
    for (const auto& [id, worker] : state_.workers) {
      const bool fits = worker.role == Role::kRollout && worker.connected && !worker.stalled &&
                        !worker.install && may_sample(worker, work) && !member.rests.contains(id) &&
                        usable_slots(state_, id, worker) > worker.leased &&
                        (work.lane == Lane::kEval ? worker.version == task.weight_floor
                                                  : worker.version == policy.frontier);
      if (fits) return (void)fail(lease.worker + " stands still, and keeps what " + id + " could");
    }
  }
}

namespace {

// Of the events that the service lets through only when they are expected; of others nothing.
template <class E>
std::optional<bool> is_expected(const State& state, const E& event) {
  constexpr bool kFiltered = std::is_same_v<E, Staged> || std::is_same_v<E, Installed> ||
                             std::is_same_v<E, InstallFailed> || std::is_same_v<E, RolledBack> ||
                             std::is_same_v<E, Published> || std::is_same_v<E, Durable> ||
                             std::is_same_v<E, Stalled> || std::is_same_v<E, TurnsStored>;
  if constexpr (kFiltered) {
    return expects(state, event);
  } else {
    return std::nullopt;
  }
}

}  // namespace

// What the service drops would have changed nothing.
void World::check_expected(const Event& event) {
  const auto expected = std::visit([&](const auto& e) { return is_expected(state_, e); }, event);
  if (!expected || *expected) return;
  ++seen["unexpected"];
  State told = state_, ticked = state_;
  const Actions actions = decide(told, event, now_), others = decide(ticked, Tick{}, now_);
  if (actions.size() != others.size() || !(told == ticked))
    fail("nobody expects it, and it changes something: " + describe(event));
}

namespace {

// Of the attempt that this member was taken from.
bool is_of_before(const State& state, const AttemptResult& result) {
  const Lease* lease = state.leases.find({result.lane, result.lease.member});
  return lease != nullptr && expects_result(state, result.worker, result.lane, result.lease) &&
         lease->attempt != result.lease.attempt;
}

}  // namespace

void World::tell(const Event& event) {
  if (!failure.empty()) return;
  check_expected(event);
  int64_t samples = 0;
  const auto* result = std::get_if<AttemptResult>(&event);
  if (result != nullptr) store(*result);
  const auto* turns = std::get_if<TurnsStored>(&event);
  if (turns != nullptr) store(*turns);
  const bool late = result != nullptr && is_of_before(state_, *result);
  if (late) samples = state_.policies.at(0).attempts.samples;
  if (watch) watch(state_, event, now_);
  const Actions actions = decide(state_, event, now_);
  if (late && result->lane == Lane::kTrain)
    ++seen[state_.policies.at(0).attempts.samples > samples ? "crossed" : "crossed in vain"];
  for (const auto& [work, lease] : state_.leases.in_order())
    seen["moved"] += lease.before.has_value();
  Written written{to_bytes(event), now_, {}};
  for (const Action& action : actions) {
    if (const auto* done = std::get_if<TaskDone>(&action)) {
      written.ends_before.emplace_back(done->task, std::nullopt);
      if (!ended_.emplace(done->task, done->end).second) fail("a prompt ended twice");
    }
    if (const auto* withdrawn = std::get_if<TaskWithdrawn>(&action)) {
      const auto ended = ended_.find(withdrawn->task);
      if (ended == ended_.end()) return (void)fail("withdrawn, but never ended");
      written.ends_before.emplace_back(ended->first, ended->second);
      ended_.erase(ended);
    }
  }
  journal_.push_back(std::move(written));
  note(event, actions);
  if (std::ranges::any_of(actions, needs_disk)) {
    synced_ = journal_.size();
    unsynced_bodies_.clear();
  }
  check(event, actions);
  check_ranks(actions);
  for (const Action& action : actions) std::visit([this](const auto& a) { act(a); }, action);
  const auto held = held_bodies(state_);
  // As the service does: what was not taken goes again.
  if (turns != nullptr && !holds_body(state_, {turns->lane, turns->lease, turns->turns}))
    bodies_.erase({turns->lane, turns->lease, turns->turns});
  for (const BodyId& body : held) {
    if (!bodies_.contains(body)) fail("a body that is needed is gone: " + to_string(body.lease));
  }
  if (held.size() != bodies_.size()) fail("bodies leak");
}

void World::store(const AttemptResult& result) {
  if (!has_sample(result.outcome) ||
      !expects_result(state_, result.worker, result.lane, result.lease)) {
    return;
  }
  const BodyId id{result.lane, result.lease};
  if (!bodies_.insert(id).second) fail("a body is stored twice");
  unsynced_bodies_.insert(id);
}

void World::store(const TurnsStored& turns) {
  if (!expects(state_, turns)) return;
  const BodyId id{turns.lane, turns.lease, turns.turns};
  if (!bodies_.insert(id).second) fail("turns are stored twice");
  unsynced_bodies_.insert(id);
  turns_[id] = turns;
  ++seen["turns stored"];
}

// Nothing is gone on from that could not be sampled today.
void World::check_prefix(const Grant& grant) {
  const TurnsStored& turns = turns_.at(*grant.prefix);
  const Mode& mode = state_.config.mode;
  const int64_t frontier = state_.policies.at(0).frontier;
  if (task_of(turns.lease.member) != task_of(grant.lease.member) ||
      turns.lease.member.launch != grant.lease.member.launch ||
      turns.lease.attempt > grant.lease.attempt)
    fail("granted from turns of another launch");
  if (turns.min_version < grant.version) fail("granted from turns below the floor");
  if (grant.lane == Lane::kEval && turns.max_version != grant.version)
    fail("an evaluation goes on from another version");
  if (grant.lane == Lane::kEval || !is_new(grant)) return;
  const bool newest_only = mode.install == InstallWhen::kDrained || mode.on_stale == OnStale::kWait;
  if (newest_only && turns.min_version != frontier) fail("granted from turns that are not new");
  if (mode.on_stale == OnStale::kDrop && frontier - turns.min_version > mode.max_staleness)
    fail("granted from turns that are too old");
}

// What the journal gives back: the snapshot and all events that are still there.
State World::replayed() {
  auto copy = from_bytes<State>(snapshot_);
  if (!copy) {
    fail("the snapshot does not load");
    return state_;
  }
  for (const Written& written : journal_) {
    const auto event = from_bytes<Event>(written.event);
    if (!event) {
      fail("the journal does not load");
      return state_;
    }
    (void)decide(*copy, *event, written.now);
  }
  return *std::move(copy);
}

// Of a list that is not whole, which begins anew for it.
void World::damage_a_part() {
  const Policy& policy = state_.policies.at(0);
  const auto batch = policy.batches.find(policy.frontier + 1);
  if (batch == policy.batches.end() || batch->second.whole || rng_.chance(0.5)) return;
  const TaskId& id = batch->second.tasks.front();
  const BodyId body = bodies_of(Lane::kTrain, id, policy.tasks.at(id)).front();
  bodies_.erase(body), lost_.insert(body);
  batches_.erase(batch->first);
  ++seen["part damaged"];
}

// The scheduler's process dies and comes back. With the power, what was not forced out may go too;
// workers and trainer are on other machines, and remember what it has forgotten.
void World::restart(bool power_lost) {
  service_.clear();
  if (power_lost) {
    ++seen["power lost"];
    const auto kept =
        synced_ +
        static_cast<size_t>(rng_.below(static_cast<int64_t>(journal_.size() - synced_) + 1));
    seen["events forgotten"] += static_cast<int64_t>(journal_.size() - kept);
    while (journal_.size() > kept) {
      // Newest first: what it said of ends was not so.
      for (auto& ends = journal_.back().ends_before; !ends.empty(); ends.pop_back()) {
        const auto& [task, before] = ends.back();
        if (before) {
          ended_[task] = *before;
        } else {
          ended_.erase(task);
        }
      }
      journal_.pop_back();
    }
    for (const BodyId& body : unsynced_bodies_) {
      if (rng_.chance(0.5)) bodies_.erase(body), lost_.insert(body);
    }
  }
  State restored = replayed();
  if (!power_lost && !(restored == state_))
    return (void)fail("snapshot and journal give another state");
  state_ = std::move(restored);
  synced_ = journal_.size();  // the journal is opened anew, with a snapshot
  if (power_lost) damage_a_part();
  BodiesLost lost;
  std::set<BodyId> held;
  for (const BodyId& body : held_bodies(state_)) {
    held.insert(body);
    if (!bodies_.contains(body)) lost.bodies.push_back(body);
  }
  std::erase_if(bodies_, [&](const BodyId& body) { return !held.contains(body); });
  unsynced_bodies_.clear();
  for (auto& [id, node] : nodes_) node.connected = false;
  for (const Event& event : wire_) {
    if (const auto* staged = std::get_if<Staged>(&event))
      late_staged_.insert({staged->worker, staged->digest});
  }
  trainer_connected_ = false;
  for (auto& [id, rank] : ranks_) rank.connected = false;
  if (!lost.bodies.empty()) {
    for (const BodyId& body : lost.bodies) lost_.insert(body), bodies_.insert(body);
    for (const BodyId& body : lost.bodies) bodies_.erase(body);
    tell(lost);
  }
  Restarted event;
  if (state_.end && state_.end->reason == RunEnd::Reason::kSteps && rng_.chance(0.5)) {
    event.config = state_.config;
    event.config->steps += 1 + rng_.below(3);
    // Other machines.
    for (DomainConfig& domain : event.config->domains)
      if (num_pools_ > 1) domain.pool = pool_name(rng_.below(num_pools_));
    ++seen["more steps"];
  } else if (rng_.chance(0.2)) {
    // A person may want other evaluations, whatever is under way.
    event.config = state_.config;
    event.config->eval.prompts = rng_.below(3);
    event.config->eval.interval_steps = rng_.below(4);
    ++seen["other evaluations"];
  } else if (rng_.chance(0.2)) {
    event.config = state_.config;
    DispatchOrder& order = event.config->mode.dispatch_order;
    order =
        order == DispatchOrder::kLaunched ? DispatchOrder::kLongestFirst : DispatchOrder::kLaunched;
    ++seen["another order"];
  }
  tell(event);
  // What the dead scheduler did not acknowledge comes again, before anything new.
  trainer_queue_.insert(trainer_queue_.begin(), unacknowledged_.begin(), unacknowledged_.end());
  unacknowledged_.clear();
}

void World::fault() {
  auto& [id, node] = *std::next(nodes_.begin(), rng_.below(std::ssize(nodes_)));
  switch (rng_.below(10)) {
    case 8:
      if (rng_.chance(0.5)) come_or_go();
      break;
    case 0:  // a worker dies, and is noticed now or when it is back
      cut_session(id);
      if (node.alive && node.connected && rng_.chance(0.5))
        tell(WorkerDown{id, node.session, rng_.chance(0.5)});
      node.alive = false;
      break;
    case 1:
      if (trainer_alive_ && rng_.chance(0.4)) {
        trainer_alive_ = false;
        trainer_queue_.clear();
        if (trainer_connected_ && rng_.chance(0.5)) tell(WorkerDown{"t", trainer_session_});
        trainer_connected_ = false;
      }
      if (!ranks_.empty() && rng_.chance(0.4)) lose_rank();
      break;
    case 2:
      if (rng_.chance(0.3)) {
        snapshot_ = to_bytes(state_);
        journal_.clear();
        synced_ = 0;
      }
      break;
    case 3:
      if (rng_.chance(0.4)) restart(/*power_lost=*/rng_.chance(0.5));
      break;
    case 4:
      if (rng_.chance(0.1)) tell(StopRequested{});
      break;
    case 5:
      now_ += seconds(8);
      tell(Tick{});
      break;
    case 6:  // its connection breaks, and is made anew
      if (!node.alive || !node.connected) break;
      cut_session(id);
      connect(id, node);
      break;
    case 7:
      node.hangs = !node.hangs;
      if (node.alive && node.connected && state_.begun && rng_.chance(0.1)) {
        wire_.push_back(WorkerFailed{id, "on purpose"});
        node.hangs = true;
      }
      break;
    default:
      now_ -= seconds(1);  // a clock that was set back
      tell(Tick{});
      now_ += seconds(1);
  }
}

// What the service sees of heartbeats: who hangs, and now and then somebody who is only slow.
void World::watch_progress() {
  for (auto& [id, node] : nodes_) {
    if (node.role != Role::kRollout || !node.alive || !node.connected) continue;
    const bool told = node.stalled;
    if (!told && faults_ && rng_.chance(node.hangs ? 0.5 : alarms_)) {
      seen["false alarm"] += !node.hangs;
      node.stalled = true;
    }
    if (told && !node.hangs && rng_.chance(0.5)) node.stalled = false;
    if (node.stalled != told) tell(Stalled{id, node.session, node.stalled});
    if (!failure.empty()) return;
  }
}

// A person adds a worker, or takes it away again.
void World::come_or_go() {
  const WorkerId id = "joined";
  const auto known = nodes_.find(id);
  if (known == nodes_.end() || !known->second.alive) {
    ++seen["joined"];
    return start_worker(id, Role::kRollout, pool_of(rng_.below(num_pools_)), /*joined=*/true);
  }
  Node& node = known->second;
  if (!node.connected) return;
  ++seen["left"];
  cut_session(id);
  tell(WorkerDown{id, node.session, /*silent=*/false});
  node.alive = node.connected = false;
}

void World::revive() {
  for (auto& [id, node] : nodes_) {
    if (!node.alive && !node.joined && rng_.chance(0.5)) {
      start_worker(id, node.role, node.pool);
    } else if (node.alive && !node.connected && rng_.chance(0.5)) {
      connect(id, node);
    }
    if (!faults_) node.hangs = false;
  }
  if (!faults_) watch_progress();
  if (!trainer_alive_) {
    start_trainer();
  } else if (!trainer_connected_) {
    connect_trainer();
  }
  revive_ranks();
  if (state_.ended && state_.end->reason == RunEnd::Reason::kStopped) restart(false);
}

void World::step() {
  now_ += std::chrono::milliseconds(rng_.below(200));
  if (faults_ && rng_.chance(0.05)) return fault();
  if (rng_.chance(0.05)) revive();
  if (faults_ && rng_.chance(0.1)) watch_progress();
  if (!failure.empty()) return;
  const int64_t what = rng_.below(10);
  if (what == 0) return train();
  if (what < 4) {
    auto& [id, node] = *std::next(nodes_.begin(), rng_.below(std::ssize(nodes_)));
    if (node.alive && !node.hangs) work(id, node);
    return;
  }
  if (wire_.empty() && trainer_queue_.empty() && service_.empty()) {
    now_ += seconds(1);
    return tell(Tick{});
  }
  deliver();
}

bool World::check_accounts() {
  int64_t total = 0, unreached = 0;
  for (const auto& [id, end] : ended_) unreached += end == TaskEnd::kUnreached;
  bool finite = true;
  for (const DomainConfig& domain : state_.config.domains) {
    if (domain.prompts_per_step == 0) continue;  // it takes no part
    finite = finite && domain.prompts_per_epoch > 0 && domain.epochs > 0;
    total += domain.prompts_per_epoch * domain.epochs;
  }
  const int64_t reached = std::ssize(ended_) - unreached;
  if (finite && reached + state_.end->unreached != total) {
    return fail(
        fmt::format("{} prompts: {} ended, {} unreached", total, reached, state_.end->unreached));
  }
  if (state_.end->reason == RunEnd::Reason::kDataEnd && state_.end->unreached != 0)
    return fail("the data ended, but not for all");
  const Policy& policy = state_.policies.at(0);
  if (state_.config.eval.prompts > 0) {
    for (const auto& [version, digest] : policy.lineage) {
      const int64_t interval = state_.config.eval.interval_steps;
      // What was due before the rules changed is not looked into.
      const bool due = version == policy.published ||
                       (seen["other evaluations"] == 0 &&
                        (version == 0 || (interval > 0 && version % interval == 0)));
      const auto found = evaluated_.find(version);
      if (due && (found == evaluated_.end() || found->second != digest.digest))
        return fail(fmt::format("version {} was not evaluated", version));
    }
  }
  return failure.empty();
}

}  // namespace tailrace::scheduler
