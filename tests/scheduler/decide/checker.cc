#include "tests/scheduler/decide/checker.h"

#include <algorithm>
#include <tuple>

#include "scheduler/state/credit.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/queues.h"

namespace tailrace::scheduler {

Checker::Checker(simulator::World& world, uint64_t seed, double whole_share)
    : world_(world), state_(world.state()), rng_(seed), whole_share_(whole_share) {
  world.before = [this](const State& state, const Event& event, Time at) {
    before(state, event, at);
  };
  world.observe = [this](const Event& event, const Actions& actions, const State& state) {
    after(event, actions, state);
  };
  world.on_fault = [this](std::string_view what) { ++seen[std::string(what)]; };
  world.on_restart = [this](const State& lost, int64_t forgotten) { on_restart(lost, forgotten); };
}

bool Checker::fail(std::string why) {
  if (failure.empty()) failure = std::move(why);
  return false;
}

// ---- before a decision

void Checker::before(const State& state, const Event& event, Time at) {
  if (!failure.empty()) return;
  at_ = at;
  check_expected(state, event, at);
  hear_of_session(event);
  store(state, event);
  forget_abandoned(state, event);
  const auto* result = std::get_if<AttemptResult>(&event);
  const Lease* lease =
      result == nullptr ? nullptr : state.leases.find({result->lane, result->lease.member});
  is_crossing_ = lease != nullptr &&
                 expects_result(state, result->worker, result->lane, result->lease) &&
                 lease->attempt != result->lease.attempt && result->lane == Lane::kTrain;
  samples_before_ = state.policies.at(0).attempts.samples;
  if (is_crossing_) {
    const MemberId& member = result->lease.member;
    crossing_least_ = find_task(state, result->lane, member)
                          ->members[static_cast<size_t>(member.member)]
                          .granted_version;
  }
  if (watch) watch(state, event, at);
}

void Checker::hear_of_session(const Event& event) {
  if (const auto* up = std::get_if<WorkerUp>(&event)) {
    Told& told = told_[up->worker];
    if (told.incarnation != up->incarnation) told = Told(), told.incarnation = up->incarnation;
    told.session = up->session;
    told.connected = true;
    told.slots = up->slots;
    told.step = told.groups_end = 0;
  }
  if (const auto* down = std::get_if<WorkerDown>(&event)) {
    Told& told = told_.at(down->worker);
    if (told.session == down->session) told.connected = false;
  }
  if (const auto* staged = std::get_if<Staged>(&event)) {
    if (world_.staged(staged->worker) != staged->digest)
      late_staged_.insert({staged->worker, staged->digest});
  }
  if (const auto* restarted = std::get_if<Restarted>(&event)) {
    if (restarted->config && !(restarted->config->eval == state_.config.eval))
      other_evaluations_ = true;
  }
}

namespace {

// Of the events that the service lets through only when they are expected; of others nothing.
template <class E>
std::optional<bool> is_expected(const State& state, const E& event) {
  constexpr bool kFiltered = std::is_same_v<E, Staged> || std::is_same_v<E, Installed> ||
                             std::is_same_v<E, InstallFailed> || std::is_same_v<E, RolledBack> ||
                             std::is_same_v<E, Published> || std::is_same_v<E, Durable> ||
                             std::is_same_v<E, Stalled> || std::is_same_v<E, TurnsStored> ||
                             std::is_same_v<E, StageProgress> || std::is_same_v<E, TrainingStage>;
  if constexpr (kFiltered) {
    return expects(state, event);
  } else {
    return std::nullopt;
  }
}

}  // namespace

// What the service drops would have changed nothing.
void Checker::check_expected(const State& state, const Event& event, Time at) {
  const auto expected = std::visit([&](const auto& e) { return is_expected(state, e); }, event);
  if (!expected || *expected) return;
  ++seen["unexpected"];
  State told = state, ticked = state;
  const Actions actions = decide(told, event, at), others = decide(ticked, Tick{}, at);
  if (actions.size() != others.size() || !(told == ticked))
    fail("nobody expects it, and it changes something: " + describe(event));
}

// As the service does, what comes is stored before it is told.
void Checker::store(const State& state, const Event& event) {
  std::optional<BodyId> body;
  if (const auto* result = std::get_if<AttemptResult>(&event)) {
    if (has_sample(result->outcome) &&
        expects_result(state, result->worker, result->lane, result->lease))
      body = {result->lane, result->lease};
    seen["mixed versions"] += result->min_version < result->max_version;
  } else if (const auto* turns = std::get_if<TurnsStored>(&event)) {
    if (expects(state, *turns)) {
      body = {turns->lane, turns->lease, turns->turns};
      turns_[*body] = *turns;
      ++seen["turns stored"];
    }
  }
  if (!body) return;
  if (!bodies_.insert(*body).second) fail("a body is stored twice");
  unforced_.insert(*body);
}

// The batches that a change of lineage withdraws may be other ones next time.
void Checker::forget_abandoned(const State& state, const Event& event) {
  const Policy& policy = state.policies.at(0);
  const auto differs = [&](int64_t version, const Digest& master) {
    const auto known = policy.lineage.find(version);
    return known != policy.lineage.end() && known->second.master != master;
  };
  int64_t from = -1;
  if (const auto* p = std::get_if<Published>(&event); p && differs(p->version, p->master))
    from = p->version;
  if (const auto* r = std::get_if<RolledBack>(&event); r && differs(r->version, r->master))
    from = r->version;
  if (from < 0) return;
  batches_.erase(batches_.upper_bound(from), batches_.end());
  whole_.erase(whole_.upper_bound(from), whole_.end());
  evaluated_.erase(evaluated_.lower_bound(from), evaluated_.end());
}

// What it has forgotten of ends was not so.
void Checker::on_restart(const State& lost, int64_t forgotten) {
  if (!failure.empty()) return;
  seen["events forgotten"] += forgotten;
  if (forgotten == 0 && !(lost == state_)) fail("snapshot and journal give another state");
  forgot_ = forgot_ || forgotten > 0;
  for (; forgotten > 0; --forgotten) {
    for (Ends& ends = ends_before_.back(); !ends.empty(); ends.pop_back()) {
      const auto& [task, end] = ends.back();
      if (end) {
        ended_[task] = *end;
      } else {
        ended_.erase(task);
      }
    }
    ends_before_.pop_back();
  }
  std::set<BodyId> held;
  for (const BodyId& body : held_bodies(state_)) held.insert(body);
  std::erase_if(bodies_, [&](const BodyId& body) { return !held.contains(body); });
  unforced_.clear();
  for (auto& [id, told] : told_) told.connected = false;
}

// ---- behind it

void Checker::after(const Event& event, const Actions& actions, const State&) {
  if (!failure.empty()) return;
  if (const auto* lost = std::get_if<BodiesLost>(&event)) {
    // Lists that are not whole begin anew for it.
    for (const BodyId& body : lost->bodies) {
      bodies_.erase(body), lost_.insert(body);
      if (body.lane != Lane::kTrain || body.turns > 0) continue;
      std::erase_if(batches_, [&](const auto& batch) {
        return !whole_.contains(batch.first) &&
               std::ranges::any_of(batch.second, [&](const HandOver::Item& item) {
                 return task_of(item.lease.member) == task_of(body.lease.member);
               });
      });
    }
  }
  if (const auto* result = std::get_if<AttemptResult>(&event)) check_fencing(*result);
  if (is_crossing_) {
    const bool is_taken = state_.policies.at(0).attempts.samples > samples_before_;
    ++seen[is_taken ? "crossed" : "crossed in vain"];
    // Law 6.4: what is in its place would be newer.
    if (is_taken && std::get<AttemptResult>(event).min_version < crossing_least_)
      fail("an answer by older weights than those of the attempt in its place");
  }
  forced_ = std::ranges::any_of(actions, needs_disk);
  if (forced_) unforced_.clear();
  note(event, actions);
  keep_ends(actions);
  check_state(event);
  check_ranks(actions);
  for (const Action& action : actions) std::visit([this](const auto& a) { check(a); }, action);
  if (const auto* turns = std::get_if<TurnsStored>(&event)) {
    // What was not taken goes again.
    const BodyId body{turns->lane, turns->lease, turns->turns};
    if (!holds_body(state_, body)) bodies_.erase(body);
  }
  if (whole_share_ == 1 || rng_.chance(whole_share_)) check_bodies();
}

// Law 6.4, by what was granted: the last holder is heard, or the one that it was moved from.
void Checker::check_fencing(const AttemptResult& result) {
  if (state_.policies.at(0).attempts.samples == samples_before_ || forgot_) return;
  const auto holder = holders_.find({result.lane, result.lease.member});
  if (holder == holders_.end()) return (void)fail("a sample that nobody was asked for");
  const auto& [worker, attempt, moved_from] = holder->second;
  const std::pair by{result.worker, result.lease.attempt};
  if (by != std::pair{worker, attempt} && moved_from != by)
    fail("a sample of somebody who does not hold it: " + to_string(result.lease));
}

void Checker::check_bodies() {
  const auto held = held_bodies(state_);
  for (const BodyId& body : held)
    if (!bodies_.contains(body)) fail("a body that is needed is gone: " + to_string(body.lease));
  if (held.size() != bodies_.size()) fail("bodies leak");
}

void Checker::keep_ends(const Actions& actions) {
  Ends ends;
  for (const Action& action : actions) {
    if (const auto* done = std::get_if<TaskDone>(&action)) {
      ends.emplace_back(done->task, std::nullopt);
      if (!ended_.emplace(done->task, done->end).second) fail("a prompt ended twice");
    }
    if (const auto* withdrawn = std::get_if<TaskWithdrawn>(&action)) {
      const auto ended = ended_.find(withdrawn->task);
      if (ended == ended_.end()) return (void)fail("withdrawn, but never ended");
      ends.emplace_back(ended->first, ended->second);
      ended_.erase(ended);
    }
  }
  ends_before_.push_back(std::move(ends));
}

void Checker::note(const Event& event, const Actions& actions) {
  const auto first_word = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  log.push_back(
      fmt::format("{:.3f} <- {}", std::chrono::duration<double>(at_).count(), describe(event)));
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
    return policy.datasets[0].ended[static_cast<size_t>(end)] > 0;
  };
  seen["filtered"] += ended(TaskEnd::kFiltered);
  seen["failed"] += ended(TaskEnd::kFailed);
  seen["unreached"] += ended(TaskEnd::kUnreached);
  seen["stale"] += ended(TaskEnd::kStale);
  seen["broken"] += ended(TaskEnd::kBroken);
  if (ended(TaskEnd::kBroken)) {
    for (const auto& [id, task] : policy.tasks) {
      seen["broken row of which a group is complete"] +=
          task.place == Place::kReady && is_broken(state_, Lane::kTrain, id);
    }
  }
  seen["broken held-out"] += !policy.datasets[0].broken.held_out.empty();
  for (const Dataset& dataset : policy.datasets) {
    seen["carried"] += !dataset.carried.empty();
    seen["parked"] += !dataset.parked.empty();
    seen["long queue"] += !dataset.long_queue.empty();
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
  if (!std::holds_alternative<Tick>(event)) return;
  for (const auto& [work, lease] : state_.leases.in_order())
    seen["moved"] += lease.before.has_value();
}

void Checker::check_state(const Event& event) {
  if (whole_share_ < 1 && !rng_.chance(whole_share_)) return;
  if (const auto violation = find_violation(state_)) fail(*violation);
  check_filtered();
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
}

// Law 3.9.
void Checker::check_filtered() {
  const Config& config = state_.config;
  if (config.max_gen_batches == 0) return;
  for (const auto& [id, policy] : state_.policies) {
    for (size_t i = 0; i < policy.step_start.filtered.size(); ++i) {
      const int64_t bound = (config.max_gen_batches - 1) * config.datasets[i].prompts_per_step;
      const int64_t filtered =
          policy.datasets[i].ended_as(TaskEnd::kFiltered) - policy.step_start.filtered[i];
      if (filtered > bound) fail("more groups are filtered than a step may");
      if (bound > 0 && filtered == bound) ++seen["filtered to the bound"];
    }
  }
}

// Nobody says anything any more: each tick comes at the time that the scheduler asked for, and none
// leaves something due behind, or the service would spin.
void Checker::check_deadlines() {
  State later = state_;
  for (int i = 0; i < 20; ++i) {
    const auto next = next_deadline(later);
    // Nothing is due before: a deadline that is left out would leave the service asleep.
    State sooner = later;
    const Time idle = next ? *next - Time(1) : later.now + std::chrono::hours(1);
    const bool acts = !decide(sooner, Tick{}, idle).empty();
    // The clock, and what follows from it alone.
    sooner.now = later.now;
    sooner.index = later.index;
    for (auto& [id, worker] : sooner.workers)
      if (later.workers.contains(id)) worker.indexed = later.workers.at(id).indexed;
    if (acts || !(sooner == later)) fail("something is due before the next deadline");
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
void Checker::check_stalled() {
  if (!state_.halted.empty() || state_.end || state_.stopping) return;
  for (const auto& [work, lease] : state_.leases.in_order()) {
    if (lease.kind != LeaseKind::kGenerate || !state_.workers.at(lease.worker).stalled) continue;
    const Policy& policy = state_.policies.at(work.member.policy);
    const Task& task = *find_task(state_, work.lane, work.member);
    const Member& member = task.members.at(static_cast<size_t>(work.member.member));
    if (state_.index.load_of(work.member.policy).installing > 0) continue;
    if (member.moves >= state_.config.retries.returned) continue;
    for (const auto& [id, worker] : state_.workers) {
      // It is given nothing before it has gone back (law 10.1).
      if (policy.evaluation && policy.evaluation->recalled.contains(id)) continue;
      const bool fits = worker.role == Role::kRollout && worker.connected && !worker.stalled &&
                        !worker.install && may_sample(worker, work) && !member.rests.contains(id) &&
                        usable_slots(state_, id, worker) > worker.leased &&
                        on_lineage(policy, worker.version, worker.digest) &&
                        (work.lane == Lane::kEval ? worker.version == task.weight_floor
                                                  : worker.version == policy.frontier);
      if (fits) return (void)fail(lease.worker + " stands still, and keeps what " + id + " could");
    }
  }
}

// ---- actions

void Checker::check(const Hold& hold) {
  if (std::ssize(hold.leases) > told_.at(hold.worker).slots)
    fail("a worker holds more than its slots");
}

// Not told once more, in a session after the one that it was given in.
bool Checker::is_new(const Grant& grant) const {
  const Lease* lease = state_.leases.find({grant.lane, grant.lease.member});
  return !told_.at(grant.worker).granted.contains({grant.lane, grant.lease}) && lease != nullptr &&
         lease->deadline == state_.now + state_.config.deadlines.lease;
}

void Checker::check(const Grant& grant) {
  Told& told = told_.at(grant.worker);
  if (told.connected && told.session != grant.session)
    fail("said to another session of " + grant.worker);
  const bool newest_only = state_.config.mode.install == InstallWhen::kDrained ||
                           state_.config.mode.on_stale == OnStale::kWait;
  if (is_new(grant)) {
    check_order(grant);
    check_pool(grant);
    if (grant.lane == Lane::kTrain && newest_only &&
        state_.workers.at(grant.worker).version != state_.policies.at(0).frontier)
      fail("granted on weights that are not the newest");
    Holder& holder = holders_[{grant.lane, grant.lease.member}];
    const auto previous = state_.workers.find(holder.worker);
    Holder next{grant.worker, grant.lease.attempt, std::nullopt};
    if (previous != state_.workers.end() && previous->second.stalled)
      next.moved_from = {holder.worker, holder.attempt};
    holder = std::move(next);
    // One that is forgotten is given again under its name.
    if (!leases_.insert({grant.lane, grant.lease}).second && !forgot_)
      fail("a lease is given twice: " + to_string(grant.lease));
  }
  if (grant.prefix) check_prefix(grant);
  told.granted.insert({grant.lane, grant.lease});
}

void Checker::check_pool(const Grant& grant) {
  const WorkId work{grant.lane, grant.lease.member};
  const Member& member =
      find_task(state_, work.lane, work.member)->members[static_cast<size_t>(work.member.member)];
  const RetryBounds& bounds = state_.config.retries;
  if (member.env_failures > bounds.env_failed || member.losses > bounds.lost ||
      member.returns > bounds.returned)
    fail("granted once too often");
  const Worker& worker = state_.workers.at(grant.worker);
  if (!may_sample(worker, work)) fail("granted outside its pool");
  // Law 10.1.
  const auto& evaluation = state_.policies.at(0).evaluation;
  if (evaluation && evaluation->recalled.contains(grant.worker) && work.lane == Lane::kTrain &&
      worker.version > evaluation->version && held_out_waits_for(worker))
    fail("granted to a worker that is to go back first");
  const bool bound = !pool_of(work).empty();
  seen["granted in its pool"] += bound;
  seen["held out in its pool"] += work.lane == Lane::kEval && !state_.config.eval.pool.empty();
  seen["granted in any pool"] += !bound && !worker.site.pool.empty();
}

std::string Checker::pool_of(const WorkId& work) const {
  const EvalOptions& eval = state_.config.eval;
  if (work.lane == Lane::kEval && !eval.pool.empty()) return eval.pool;
  return state_.config.datasets.at(static_cast<size_t>(work.member.dataset)).pool;
}

// Law 1.5.
bool Checker::may_sample(const Worker& worker, const WorkId& work) const {
  const std::string pool = pool_of(work);
  return pool.empty() || pool == worker.site.pool;
}

bool Checker::held_out_waits_for(const Worker& worker) const {
  for (const auto& [need, members] : state_.waiting) {
    if (need.lane == Lane::kEval && std::ranges::any_of(members, [&](const Waiting& waiting) {
          return may_sample(worker, waiting.work);
        }))
      return true;
  }
  return false;
}

// What still waits could not have gone there, or its turn comes later (law 6.9).
void Checker::check_order(const Grant& grant) {
  const WorkId work{grant.lane, grant.lease.member};
  if (state_.leases.at(work).before) return;  // it has not waited
  const Task& task = *find_task(state_, work.lane, work.member);
  const auto queue = state_.waiting.find(need_of(state_, work.lane, task_of(work.member), task));
  if (queue == state_.waiting.end()) return;
  const Waiting granted{rank_of(state_, work.lane, task, work.member.member), work};
  bool overtakes = false;
  for (const Waiting& waiting : queue->second) {
    const Member& member = find_task(state_, waiting.work.lane, waiting.work.member)
                               ->members.at(static_cast<size_t>(waiting.work.member.member));
    const auto rest = member.rests.find(grant.worker);
    const bool avoids = rest != member.rests.end() && rest->second > state_.now;
    // One that is to prove itself begins with what has not failed yet (law 7.3).
    const bool proves = on_trial(state_, grant.worker) && tried_before(member);
    // Its turns are by newer weights than the worker's (law 6.8).
    const bool goes_on_elsewhere =
        member.prefix && member.prefix->max_version > state_.workers.at(grant.worker).version;
    seen["turns wait for newer weights"] += waiting < granted && goes_on_elsewhere;
    if (waiting < granted && !avoids && !proves && !goes_on_elsewhere)
      return (void)fail(to_string(work.member) + " goes before its turn");
    overtakes = overtakes || (granted < waiting && waiting.work < work);
  }
  seen["overtakes"] += overtakes;
  seen["the longest goes first"] += overtakes && task.longest >= 0;
}

// Nothing is gone on from that could not be sampled today.
void Checker::check_prefix(const Grant& grant) {
  if (!bodies_.contains(*grant.prefix)) return (void)fail("granted from turns that are not there");
  ++seen["resumed"];
  const TurnsStored& turns = turns_.at(*grant.prefix);
  const Mode& mode = state_.config.mode;
  const int64_t frontier = state_.policies.at(0).frontier;
  if (task_of(turns.lease.member) != task_of(grant.lease.member) ||
      turns.lease.member.launch != grant.lease.member.launch ||
      turns.lease.attempt > grant.lease.attempt)
    fail("granted from turns of another launch");
  if (turns.min_version < grant.version) fail("granted from turns below the floor");
  if (turns.max_version > state_.workers.at(grant.worker).version && is_new(grant))
    fail("older weights go on from newer turns");
  if (grant.lane == Lane::kEval && turns.max_version != grant.version)
    fail("an evaluation goes on from another version");
  if (grant.lane == Lane::kEval || !is_new(grant)) return;
  const bool newest_only = mode.install == InstallWhen::kDrained || mode.on_stale == OnStale::kWait;
  if (newest_only && turns.min_version != frontier) fail("granted from turns that are not new");
  if (mode.on_stale == OnStale::kDrop && frontier - turns.min_version > mode.max_staleness)
    fail("granted from turns that are too old");
}

void Checker::check(const Verify& verify) {
  if (!bodies_.contains({verify.lane, verify.lease}))
    fail("verification of a body that is not there");
}

// Law 9.8: nobody is asked for weights that were let go.
void Checker::check(const Stage& stage) {
  if (!world_.has_published(stage.version))
    fail(fmt::format("the weights of version {} were let go", stage.version));
  if (stage.version >= fetched_from_) return;
  if (stage.version != kept_payload_)
    fail(fmt::format("the payload of version {} was let go", stage.version));
  ++seen["an old version is fetched for its evaluation"];
}

void Checker::check(const ReleaseWeights& release) {
  if (state_.config.keep_sampled) {
    // What is gone on from is shown with the weights that sampled it.
    for (const auto& [id, task] : state_.policies.at(0).tasks) {
      for (int32_t i = 0; i < std::ssize(task.members); ++i) {
        const auto& prefix = task.members[static_cast<size_t>(i)].prefix;
        const WorkId work{Lane::kTrain, member_id(id, task.launch, i)};
        if (prefix && turns_.at(prefix_of(work, *prefix)).min_version < release.below)
          fail(to_string(work.member) + " goes on from turns by weights that are let go");
      }
    }
  }
  fetched_from_ = release.fetched_from;
  kept_payload_ = release.evaluated;
}

void Checker::check(const Forked& fork) { fetched_from_ = std::min(fetched_from_, fork.from); }

// Law 9.6.
void Checker::check(const Switch& change) {
  const Worker& worker = state_.workers.at(change.worker);
  const Policy& policy = state_.policies.at(0);
  if (state_.config.mode.install == InstallWhen::kDrained && worker.leased > 0)
    fail("an install under work that has not ended");
  // Law 10.1.
  if (policy.evaluation && worker.version == policy.evaluation->version &&
      on_lineage(policy, worker.version, worker.digest) && change.version != worker.version) {
    for (const WorkId& work : state_.leases.of(change.worker))
      if (work.lane == Lane::kEval) fail("switched under a held-out sample");
    if (held_out_waits_for(worker)) fail("switched while a held-out sample waits for it");
    seen["a worker goes on beside an evaluation"] += evaluating(policy);
  }
  const bool goes_back =
      on_lineage(policy, worker.held, worker.digest) && change.version < worker.held;
  if (goes_back && worker.leased > 0) fail("went back to older weights under its work");
  seen["a worker goes back for an evaluation"] += goes_back;
  if (!on_lineage(policy, change.version, change.digest)) fail("switched to abandoned weights");
  const Told& told = told_.at(change.worker);
  if (!told.connected || world_.staged(change.worker) == change.digest) return;
  if (told.session != change.session) fail("said to another session of " + change.worker);
  // A process that has died unnoticed has nothing.
  if (world_.staged(change.worker).empty()) return;
  // A word of it from when it had is taken for the answer (law 14.4); the worker knows.
  if (!late_staged_.contains({change.worker, change.digest}))
    fail(fmt::format("{} is to switch to {} and has staged {}", change.worker, change.digest,
                     world_.staged(change.worker)));
  ++seen["switch refused"];
}

void Checker::check(const HandOver& batch) {
  Told& told = told_.at(batch.worker);
  if (told.connected && told.session != batch.session) fail("a batch for another session");
  if (batch.copy) {
    if (told.connected && told.formation != formation_)
      fail("a copy for a rank that has not met the trainer");
    return;
  }
  // Parts follow each other, and asked again the list begins as before.
  std::vector<HandOver::Item>& known = batches_[batch.step];
  const auto first = static_cast<size_t>(batch.first);
  if (first > known.size()) return (void)fail("a part of a batch is missing");
  if (const auto& open = state_.policies.at(0).evaluation; open && known.empty()) {
    const EvalOptions& eval = state_.config.eval;
    if (eval.holds_training) fail("a batch under an evaluation that holds it back");
    const int64_t version = batch.step - 1, interval = eval.interval_steps;
    if (!other_evaluations_ && open->version < version && interval > 0 && version % interval == 0)
      fail(fmt::format("a batch, and the evaluation of {} is left behind", version));
    seen["an evaluation lags behind"] += open->version < version;
  }
  const bool is_next = first == known.size();
  if (batch.last && first + batch.items.size() < known.size()) fail("a step's list has shrunk");
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (first + i == known.size()) known.push_back(batch.items[i]);
    if (!(known[first + i] == batch.items[i])) fail("a step's list has changed");
  }
  const bool in_parts = state_.config.mode.hand_over == HandOverBy::kGroups;
  if (!in_parts && (!batch.last || batch.first > 0)) fail("a batch in parts");
  if (batch.last && known.empty()) fail("an empty batch");
  // Law 3.10: something is left to do, or there would be no batch.
  if (batch.last && !(0 <= batch.share_begin && batch.share_begin <= batch.share_end &&
                      batch.share_begin < 1 && batch.share_end <= 1))
    fail(fmt::format("a step from {} to {} of the run", batch.share_begin, batch.share_end));
  if (batch.step > state_.policies.at(0).frontier) check_short(batch);
  seen["parts of a batch"] += !batch.last;
  // A list that is told once more may hold several parts.
  for (size_t i = 1; i < batch.items.size() && (is_next || !in_parts); ++i) {
    const MemberId &a = batch.items[i - 1].lease.member, &b = batch.items[i].lease.member;
    if (std::tie(a.epoch, a.prompt, a.dataset, a.member) >=
        std::tie(b.epoch, b.prompt, b.dataset, b.member)) {
      fail("a batch out of order");
    }
  }
  for (const HandOver::Item& item : batch.items) {
    if (!bodies_.contains({Lane::kTrain, item.lease})) fail("a batch without its bodies");
    if (unforced_.contains({Lane::kTrain, item.lease})) fail("a batch before its bodies");
  }
  if (!forced_) fail("a batch before its journal");
  check_staleness(batch);
  // In a session every part comes, in order.
  if (batch.first != 0 && (batch.step != told.step || batch.first != told.groups_end))
    fail("a gap between parts");
  told.step = batch.step;
  told.groups_end = batch.first + std::ssize(batch.items);
}

// A step ends short only when nothing more can come, and goes on otherwise (law 3.7, 3.8).
void Checker::check_short(const HandOver& batch) {
  const Policy& policy = state_.policies.at(0);
  const Batch& held = policy.batches.at(batch.step);
  bool complete = true;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const int64_t q = state_.config.datasets[static_cast<size_t>(i)].prompts_per_step;
    complete = complete && (held.datasets[static_cast<size_t>(i)] == q || reserved(policy, i) == 0);
  }
  // One that was whole once stays so, whatever can come by now.
  const bool was_whole = !batch.last || whole_.contains(batch.step);
  if (batch.last) whole_.insert(batch.step);
  if (!batch.last && complete) fail("the last part does not say so");
  if (!was_whole && !complete) fail("a step ends short, and more could come");
}

// Exact, whatever has gone wrong before: synchronous modes are on-policy, and the bound holds where
// the mode promises it.
void Checker::check_staleness(const HandOver& batch) {
  const Mode& mode = state_.config.mode;
  const int64_t start = batch.step - 1;
  for (const HandOver::Item& item : batch.items) {
    const Task& task = state_.policies.at(0).tasks.at(task_of(item.lease.member));
    const Member& member = task.members.at(static_cast<size_t>(item.lease.member.member));
    const int64_t staleness = start - member.min_version;
    if (member.max_version > start) fail("trained on weights that came later");
    if (!mode.off_policy() && staleness != 0) fail("a synchronous step is not on-policy");
    if (mode.on_stale != OnStale::kMask && staleness > mode.max_staleness)
      fail(fmt::format("a sample is {} versions old", staleness));
    if (mode.install == InstallWhen::kDrained && member.min_version != member.max_version)
      fail("a sample mixes versions");
    seen["off-policy"] += staleness > 0;
  }
}

// All hear of it in one event, under one name, that they have not had before.
void Checker::check_ranks(const Actions& actions) {
  std::vector<const FormRanks*> ranks;
  std::set<std::pair<WorkerId, int32_t>> lists;  // of whom, copies or not
  for (const Action& action : actions) {
    if (const auto* form = std::get_if<FormRanks>(&action)) ranks.push_back(form);
    if (const auto* batch = std::get_if<HandOver>(&action)) {
      if (!lists.insert({batch->worker, batch->copy}).second) fail("a batch twice in one event");
    }
  }
  if (!lists.empty() && std::ssize(lists) != state_.config.trainer_ranks)
    fail("a batch that not all ranks have");
  if (ranks.empty()) return;
  if (std::ssize(ranks) != state_.config.trainer_ranks)
    return (void)fail("not all ranks are to meet");
  for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) {
    const FormRanks& one = *ranks[static_cast<size_t>(rank)];
    if (one.rank != rank || one.size != std::ssize(ranks) || one.formation == 0 ||
        one.formation != ranks.front()->formation || one.formation == formation_)
      fail("ranks are to meet under other names");
  }
  formation_ = ranks.front()->formation;
}

void Checker::check(const FormRanks& ranks) {
  Told& told = told_.at(ranks.worker);
  if (told.connected && told.session != ranks.session) fail("ranks: another session");
  told.formation = ranks.formation;
  told.step = told.groups_end = 0;
}

void Checker::check(const Release& release) {
  for (const BodyId& body : release.bodies) {
    unforced_.erase(body);
    if (bodies_.erase(body) == 0 && !lost_.contains(body))
      fail("released what is not stored: " + to_string(body.lease));
  }
}

void Checker::check(const EvalDone& report) {
  const size_t expected =
      state_.config.datasets.size() *
      static_cast<size_t>(state_.config.eval.prompts * state_.config.eval.group_size);
  // One that was opened under other rules keeps its size.
  if (!other_evaluations_ && report.items.size() != expected) fail("an evaluation is incomplete");
  for (const EvalDone::Item& item : report.items) {
    if (item.reward && !bodies_.contains({Lane::kEval, item.lease}))
      fail("an evaluation without its bodies");
  }
  evaluated_[report.version] = state_.policies.at(0).lineage.at(report.version).digest;
}

void Checker::check(const Halt& halt) {
  if (!may_halt) fail("halted: " + halt.reason);
}

// ---- the end

bool Checker::check_accounts() {
  if (!failure.empty()) return false;
  int64_t total = 0, unreached = 0;
  for (const auto& [id, end] : ended_) unreached += end == TaskEnd::kUnreached;
  bool finite = true;
  for (const DatasetConfig& dataset : state_.config.datasets) {
    if (dataset.prompts_per_step == 0) continue;  // it takes no part
    finite = finite && dataset.prompts_per_epoch > 0 && dataset.epochs > 0;
    total += dataset.prompts_per_epoch * dataset.epochs;
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
      const bool due =
          version == policy.published ||
          (!other_evaluations_ && (version == 0 || (interval > 0 && version % interval == 0)));
      const auto found = evaluated_.find(version);
      if (due && (found == evaluated_.end() || found->second != digest.digest))
        return fail(fmt::format("version {} was not evaluated", version));
    }
  }
  return failure.empty();
}

}  // namespace tailrace::scheduler
