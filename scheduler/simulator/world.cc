#include "scheduler/simulator/world.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "scheduler/state/archive.h"
#include "scheduler/state/expects.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

namespace {

// Answers to what the scheduler asked a session; results count whatever session brings them.
bool is_of_session(const Event& event) {
  return std::holds_alternative<Staged>(event) || std::holds_alternative<Installed>(event) ||
         std::holds_alternative<InstallFailed>(event) ||
         std::holds_alternative<WorkerFailed>(event);
}

}  // namespace

World::World(Config law, Cluster cluster, const EpisodeSource& episodes, uint64_t seed)
    : state_(std::move(law)),
      cluster_(std::move(cluster)),
      episodes_(episodes),
      seed_(seed),
      rng_(tailrace::mix({seed, 0x776f726c64})),
      keeps_journal_(cluster_.faults.scheduler_mean > 0) {
  for (const PoolModel& pool : cluster_.pools) {
    for (int64_t i = 0; i < pool.workers; ++i) {
      Rollout worker;
      worker.id = fmt::format("rollout-{}", rollouts_.size());
      worker.pool = &pool;
      rollouts_.push_back(std::move(worker));
    }
  }
  if (cluster_.faults.join_mean > 0) {
    Rollout worker;
    worker.id = "joined-0";
    worker.pool = &cluster_.pools.front();
    worker.joined = true;
    rollouts_.push_back(std::move(worker));
  }
  rewards_.resize(static_cast<size_t>(cluster_.reward_workers));
  ranks_.resize(static_cast<size_t>(state_.config.trainer_ranks - 1));
  const auto name = [&](auto& workers, Role role, std::string_view prefix, int32_t first) {
    for (int32_t i = 0; i < std::ssize(workers); ++i) {
      Process& worker = workers[static_cast<size_t>(i)];
      if (worker.id.empty()) worker.id = fmt::format("{}-{}", prefix, first + i);
      worker.role = role;
      worker.index = first + i;
    }
  };
  name(rollouts_, Role::kRollout, "rollout", 0);
  name(rewards_, Role::kReward, "reward", 0);
  name(ranks_, Role::kTrainer, "trainer", 1);
  trainer_.id = kTrainerName;
  trainer_.role = Role::kTrainer;
  for (Process* process : processes()) by_name_[process->id] = process;
  // Where the scheduler never dies nobody reads a journal, and its bytes would cost each event.
  if (keeps_journal_) snapshot_ = to_bytes(state_);
  // In the order in which a launch starts them; the scheduler hears of them when it runs.
  call(0, [this] {
    for (Process* process : processes())
      if (!process->joined) start(*process);
    arm_faults();
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

void World::linger(double seconds) {
  const Time end = now_ + to_time(seconds);
  while (!wakes_.empty() && wakes_.top().at <= end) {
    const Wake next = wakes_.top();
    wakes_.pop();
    now_ = std::max(now_, next.at);
    fire(next);
  }
  now_ = std::max(now_, end);
}

void World::wake(double seconds, WakeKind kind, int32_t worker, int64_t id) {
  // Rounding may have put the moment before now, and the clock of a world never goes back. The
  // order tells wakes of one moment apart, so that a run is the same to the last bit.
  wakes_.push({std::max(now_, to_time(seconds)), ++orders_, kind, worker, id});
}

void World::call(double seconds, std::function<void()> what) {
  calls_.emplace(++last_id_, std::move(what));
  wake(seconds, WakeKind::kCall, 0, last_id_);
}

void World::call_on(Process& process, double seconds, std::function<void()> what) {
  call(seconds, [this, &process, life = process.life, what = std::move(what)] {
    // A process takes along what it was about to do.
    if (process.life != life) return;
    if (process.hangs_until > now_) return call_on(process, seconds_of(process.hangs_until), what);
    what();
  });
}

double World::delay() {
  const WireModel& wire = cluster_.wire;
  return wire.delay + (wire.spread > 0 ? exponential(wire.spread) : 0);
}

// A worker's messages come in the order in which it sends them, unless one is overtaken; a copy
// comes late.
void World::send(Process& from, Event event, std::optional<Sample> body) {
  const WireModel& wire = cluster_.wire;
  const auto post = [&](Message message, double at) {
    messages_.emplace(++last_id_, std::move(message));
    wake(at, WakeKind::kMessage, 0, last_id_);
  };
  Message message{&from, from.link, std::move(event), std::move(body)};
  const double at = std::max(from.said, now() + delay());
  if (chance(wire.doubled)) post(message, at + delay() + 10 * wire.spread * rng_.uniform());
  if (chance(wire.overtaken))
    return post(std::move(message), at + 10 * wire.spread * rng_.uniform());
  from.said = at;
  post(std::move(message), at);
}

void World::send_self(Event event) {
  messages_.emplace(++last_id_, Message{nullptr, 0, std::move(event), std::nullopt});
  wake(now() + cluster_.wire.delay, WakeKind::kMessage, 0, last_id_);
}

// As the service does: a body is stored before its event is told, and what is not taken goes again.
void World::deliver(Message message) {
  if (message.from != nullptr && is_of_session(message.event) && message.from->link != message.link)
    return;
  // By now it would halt the run (law 7.1).
  if (std::holds_alternative<WorkerFailed>(message.event) && !state_.begun) return;
  std::optional<BodyId> stored;
  // Only of a lease that is expected: the service stores no body of a fenced attempt (law 6.4).
  if (const auto* result = std::get_if<AttemptResult>(&message.event)) {
    if (message.body && expects_result(state_, result->worker, result->lane, result->lease)) {
      stored = {result->lane, result->lease};
      bodies_[*stored] = *std::move(message.body);
    }
  } else if (const auto* turns = std::get_if<TurnsStored>(&message.event)) {
    if (expects(state_, *turns)) {
      stored = {turns->lane, turns->lease, turns->turns};
      turns_[*stored] = *std::move(message.body);
    }
  }
  if (stored && keeps_journal_) unforced_bodies_.insert(*stored);
  tell(message.event);
  if (!stored || holds_body(state_, *stored)) return;
  (stored->turns == 0 ? bodies_ : turns_).erase(*stored);
  unforced_bodies_.erase(*stored);
}

void World::fire(const Wake& wake) {
  const auto worker = [&]() -> Rollout& { return rollouts_[static_cast<size_t>(wake.worker)]; };
  switch (wake.kind) {
    case WakeKind::kEngine:
      if (worker().generation == wake.id) advance(worker());
      return;
    case WakeKind::kPlay: {
      const auto play = worker().plays.find(wake.id);
      if (play == worker().plays.end()) return;
      if (worker().hangs_until > now_)
        return this->wake(seconds_of(worker().hangs_until), wake.kind, wake.worker, wake.id);
      if (play->second.phase == Phase::kReset) return begin_turn(worker(), wake.id);
      return end_turn(worker(), wake.id);
    }
    case WakeKind::kMessage: {
      auto message = messages_.extract(wake.id);
      if (!message.empty()) deliver(std::move(message.mapped()));
      return;
    }
    case WakeKind::kTrainerSays:
      return hear_trainer();
    case WakeKind::kTick:
      // A tick that was armed before an earlier one stays in the queue, and finds nothing due when
      // it comes.
      if (tick_ == wake.at) tick_ = Time::max();
      if (const auto due = next_deadline(state_); due && *due <= now_) return tell(Tick{});
      return arm_tick();
    case WakeKind::kTrained:
      if (trainer_.work == wake.id) end_step();
      return;
    case WakeKind::kCall: {
      auto what = calls_.extract(wake.id);
      return what.mapped()();
    }
  }
}

void World::arm_tick() {
  const auto next = next_deadline(state_);
  // One tick at a time is enough: tell() arms the next one behind each event.
  if (!next || *next >= tick_) return;
  tick_ = std::max(*next, now_);
  wakes_.push({tick_, ++orders_, WakeKind::kTick, 0, 0});
}

void World::tell(const Event& event, Time at) {
  if (before) before(state_, event, at);
  const Actions actions = decide(state_, event, at);
  ++totals_.events;
  if (keeps_journal_) write(event, at, actions);
  if (observe) observe(event, actions, state_);
  for (const Action& action : actions) act(action);
  arm_tick();
}

World::Process* World::find(const WorkerId& id, uint64_t session) {
  const auto found = by_name_.find(id);
  if (found == by_name_.end()) return nullptr;
  Process& process = *found->second;
  return process.connected && process.session == session ? &process : nullptr;
}

template <class A>
void World::say(const A& message) {
  Process* process = find(message.worker, message.session);
  if (process == nullptr) return;
  if (cluster_.wire.back <= 0) return hear(*process, message);
  // Messages of one link keep their order, as those of a socket do.
  process->heard = std::max(process->heard, now() + exponential(cluster_.wire.back));
  call(process->heard, [this, message] {
    if (Process* there = find(message.worker, message.session)) hear(*there, message);
  });
}

void World::act(const Action& action) {
  std::visit(
      [&]<class A>(const A& what) {
        if constexpr (requires { what.session; }) {
          say(what);
        } else if constexpr (std::is_same_v<A, Release>) {
          for (const BodyId& body : what.bodies) {
            (body.turns == 0 ? bodies_ : turns_).erase(body);
            unforced_bodies_.erase(body);
          }
        } else if constexpr (std::is_same_v<A, EvalDone>) {
          send_self(EvalReported{what.policy, what.version});
        }
      },
      action);
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
  for (Rollout& worker : rollouts_) {
    advance(worker);
    add(worker.engine.totals());
    add(worker.before);
    if (worker.joined) continue;  // for a while, and for nothing
    prices += worker.pool->hardware.price_per_hour;
    totals.engine_time += now();
    totals.slot_seconds += now() * static_cast<double>(worker.pool->slots);
  }
  totals.trainer_busy = trainer_.busy - still_to_compute();
  totals.price = prices * now() / 3600;
  return totals;
}

}  // namespace tailrace::simulator
