#include "scheduler/simulator/world.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace tailrace::simulator {

using scheduler::Action;
using scheduler::Actions;
using scheduler::Event;

namespace {

// Rounded up: what is due at a time is due when its wake comes.
Time to_time(double seconds) { return Time(static_cast<int64_t>(std::ceil(seconds * 1e9))); }

}  // namespace

World::World(scheduler::Config law, Cluster cluster, const EpisodeSource& episodes, uint64_t seed)
    : state_(std::move(law)),
      cluster_(std::move(cluster)),
      episodes_(episodes),
      seed_(seed),
      rng_(tailrace::mix({seed, 0x776f726c64})) {
  for (const PoolModel& pool : cluster_.pools) {
    for (int64_t i = 0; i < pool.workers; ++i) {
      Rollout worker;
      worker.id = fmt::format("rollout-{}", rollouts_.size());
      worker.pool = &pool;
      by_name_[worker.id] = static_cast<int32_t>(rollouts_.size());
      rollouts_.push_back(std::move(worker));
    }
  }
  // In the order in which a launch starts them; the scheduler hears of them when it runs.
  call(0, [this] {
    start_trainer();
    for (int64_t i = 0; i < cluster_.reward_workers; ++i) {
      const WorkerId id = fmt::format("reward-{}", i);
      reward_sessions_[id] = ++sessions_;
      tell(scheduler::WorkerUp{.worker = id,
                               .session = sessions_,
                               .role = Role::kReward,
                               .incarnation = ++incarnations_,
                               .slots = cluster_.reward_slots});
    }
    for (int32_t i = 0; i < std::ssize(rollouts_); ++i) start_rollout(i);
  });
}

World::Stop World::run(double until, int64_t steps) {
  const auto wanted = steps_.size() + static_cast<size_t>(steps);
  const Time end = to_time(until);
  while (!state_.ended) {
    if (!state_.halted.empty()) return Stop::kHalted;
    if (steps > 0 && steps_.size() >= wanted) return Stop::kSteps;
    if (wakes_.empty()) return Stop::kStuck;
    const Wake next = wakes_.top();
    if (next.at > end) {
      now_ = std::max(now_, end);
      return Stop::kTime;
    }
    wakes_.pop();
    now_ = std::max(now_, next.at);
    fire(next);
  }
  return Stop::kEnded;
}

void World::wake(double seconds, WakeKind kind, int32_t worker, int64_t id) {
  wakes_.push({std::max(now_, to_time(seconds)), ++orders_, kind, worker, id});
}

void World::call(double seconds, std::function<void()> what) {
  calls_.emplace(++last_id_, std::move(what));
  wake(seconds, WakeKind::kCall, 0, last_id_);
}

// What one worker says comes in the order in which it says it; what comes twice comes late.
void World::send(const WorkerId& from, Event event) {
  const WireModel& wire = cluster_.wire;
  const auto post = [&](Event message, double at) {
    messages_.emplace(++last_id_, std::move(message));
    wake(at, WakeKind::kMessage, 0, last_id_);
  };
  const auto delay = [&] { return wire.delay + (wire.spread > 0 ? exponential(wire.spread) : 0); };
  double& last = last_said_[from];
  last = std::max(last, now() + delay());
  if (wire.doubled > 0 && from != kTrainerName && rng_.chance(wire.doubled))
    post(event, last + delay() + 10 * wire.spread * rng_.uniform());
  post(std::move(event), last);
}

void World::fire(const Wake& wake) {
  switch (wake.kind) {
    case WakeKind::kEngine:
      if (rollouts_[static_cast<size_t>(wake.worker)].generation == wake.id) advance(wake.worker);
      return;
    case WakeKind::kPlay: {
      Rollout& worker = rollouts_[static_cast<size_t>(wake.worker)];
      const auto play = worker.plays.find(wake.id);
      if (play == worker.plays.end()) return;
      if (play->second.phase == Phase::kReset) return begin_turn(wake.worker, wake.id);
      return end_turn(wake.worker, wake.id);
    }
    case WakeKind::kMessage: {
      auto message = messages_.extract(wake.id);
      return tell(message.mapped());
    }
    case WakeKind::kTick:
      if (tick_ == wake.at) tick_ = Time::max();
      if (const auto due = scheduler::next_deadline(state_); due && *due <= now_)
        return tell(scheduler::Tick{});
      return arm_tick();
    case WakeKind::kTrained:
      if (trainer_.alive && trainer_.life == wake.id) publish(trainer_.step);
      return;
    case WakeKind::kFault:
      return wake.id == 0 ? kill_rollout(wake.worker) : hang_rollout(wake.worker);
    case WakeKind::kCall: {
      auto what = calls_.extract(wake.id);
      return what.mapped()();
    }
  }
}

void World::arm_tick() {
  const auto next = scheduler::next_deadline(state_);
  if (!next || *next >= tick_) return;
  tick_ = std::max(*next, now_);
  wakes_.push({tick_, ++orders_, WakeKind::kTick, 0, 0});
}

void World::tell(const Event& event) {
  const Actions actions = scheduler::decide(state_, event, now_);
  ++totals_.events;
  if (observe) observe(event, actions, state_);
  for (const Action& action : actions) act(action);
  // What was not taken is not kept.
  if (const auto* result = std::get_if<scheduler::AttemptResult>(&event)) {
    const BodyId body{result->lane, result->lease};
    if (!scheduler::holds_body(state_, body)) bodies_.erase(body);
  } else if (const auto* turns = std::get_if<scheduler::TurnsStored>(&event)) {
    const BodyId body{turns->lane, turns->lease, turns->turns};
    if (!scheduler::holds_body(state_, body)) turns_.erase(body);
  }
  arm_tick();
}

void World::act(const Action& action) {
  const auto index_of = [&](const auto& message) {
    const auto found = by_name_.find(message.worker);
    if (found == by_name_.end()) return int32_t{-1};
    const Rollout& worker = rollouts_[static_cast<size_t>(found->second)];
    return worker.alive && worker.session == message.session ? found->second : int32_t{-1};
  };
  if (const auto* grant = std::get_if<scheduler::Grant>(&action)) {
    if (const int32_t i = index_of(*grant); i >= 0) this->grant(i, *grant);
  } else if (const auto* abort = std::get_if<scheduler::Abort>(&action)) {
    const int32_t i = index_of(*abort);
    if (i < 0) return;
    Rollout& worker = rollouts_[static_cast<size_t>(i)];
    const auto play = worker.by_lease.find({abort->lane, abort->lease});
    if (play == worker.by_lease.end()) return;
    advance(i);
    if (const auto again = worker.by_lease.find({abort->lane, abort->lease});
        again != worker.by_lease.end()) {
      drop_play(i, again->second);
      if (worker.pool->lockstep) lift_barrier(i);
      arm_engine(i);
    }
  } else if (const auto* hold = std::get_if<scheduler::Hold>(&action)) {
    const int32_t i = index_of(*hold);
    if (i < 0) return;
    Rollout& worker = rollouts_[static_cast<size_t>(i)];
    advance(i);
    std::vector<int64_t> void_plays;
    for (const auto& [lease, id] : worker.by_lease) {
      if (std::ranges::find(hold->leases, lease) == hold->leases.end()) void_plays.push_back(id);
    }
    for (const int64_t id : void_plays) drop_play(i, id);
    arm_engine(i);
  } else if (const auto* stage = std::get_if<scheduler::Stage>(&action)) {
    if (const int32_t i = index_of(*stage); i >= 0) this->stage(i, *stage);
  } else if (const auto* change = std::get_if<scheduler::Switch>(&action)) {
    if (const int32_t i = index_of(*change); i >= 0) switch_over(i, *change);
  } else if (const auto* verify = std::get_if<scheduler::Verify>(&action)) {
    this->verify(*verify);
  } else if (const auto* batch = std::get_if<scheduler::HandOver>(&action)) {
    if (!batch->copy) take(*batch);
  } else if (const auto* save = std::get_if<scheduler::Save>(&action)) {
    if (!trainer_.alive || save->session != trainer_.session) return;
    call(now() + cluster_.trainer.save, [this, life = trainer_.life, version = save->version] {
      if (!trainer_.alive || trainer_.life != life || trainer_.version != version) return;
      trainer_.durable = version;
      send(kTrainerName, scheduler::Durable{kTrainerName, 0, version, version});
    });
  } else if (const auto* release = std::get_if<scheduler::Release>(&action)) {
    for (const BodyId& body : release->bodies) {
      (body.turns == 0 ? bodies_ : turns_).erase(body);
    }
  } else if (const auto* report = std::get_if<scheduler::EvalDone>(&action)) {
    send("", scheduler::EvalReported{report->policy, report->version});  // of the service
  }
}

World::Totals World::totals() {
  Totals totals = totals_;
  const auto add = [&](const Engine::Totals& engine) {
    totals.generated += engine.tokens;
    totals.prefilled += engine.prefilled;
    totals.engine_busy += engine.busy;
    totals.sequence_seconds += engine.sequence_s;
    totals.preemptions += engine.preemptions;
  };
  double prices = cluster_.trainer.price_per_hour;
  for (int32_t i = 0; i < std::ssize(rollouts_); ++i) {
    advance(i);
    const Rollout& worker = rollouts_[static_cast<size_t>(i)];
    add(worker.engine.totals());
    add(worker.before);
    prices += worker.pool->hardware.price_per_hour;
    totals.engine_time += now();
    totals.slot_seconds += now() * static_cast<double>(worker.pool->slots);
  }
  totals.trainer_busy = trainer_.busy;
  totals.price = prices * now() / 3600;
  return totals;
}

bool World::is_broken(Lane lane, const MemberId& member) const {
  const double share = cluster_.faults.broken_task;
  if (share <= 0) return false;
  const int64_t rows = state_.config.domains[static_cast<size_t>(member.domain)].prompts_per_epoch;
  const int64_t row = lane == Lane::kTrain ? tailrace::row_of(member.prompt, rows) : member.prompt;
  return Rng(tailrace::mix({seed_, 0x62726f6b656e, static_cast<uint64_t>(lane),
                            static_cast<uint64_t>(member.domain), static_cast<uint64_t>(row)}))
      .chance(share);
}

}  // namespace tailrace::simulator
