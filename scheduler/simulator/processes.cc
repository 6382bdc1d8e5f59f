// Workers of a world come and go; and its reward workers.
#include <algorithm>

#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

std::vector<World::Process*> World::processes() {
  std::vector<Process*> all = {&trainer_};
  for (Process& rank : ranks_) all.push_back(&rank);
  for (Process& worker : rewards_) all.push_back(&worker);
  for (Process& worker : rollouts_) all.push_back(&worker);
  return all;
}

Digest World::staged(const WorkerId& id) const {
  const auto found = by_name_.find(id);
  if (found == by_name_.end() || found->second->role != Role::kRollout) return {};
  const auto& staged = static_cast<const Rollout*>(found->second)->staged;
  return staged ? staged->digest : Digest{};
}

bool World::is_alive(const WorkerId& id) const {
  const auto found = by_name_.find(id);
  return found != by_name_.end() && found->second->alive;
}

void World::kill(const WorkerId& id) {
  if (const auto found = by_name_.find(id); found != by_name_.end()) kill(*found->second);
}

bool World::hangs(const WorkerId& id) const {
  const auto found = by_name_.find(id);
  return found != by_name_.end() && found->second->hangs_until > now_;
}

void World::start(Process& process) {
  process.alive = true;
  process.incarnation = ++incarnations_;
  process.hangs_until = {};
  if (process.role == Role::kRollout) {
    auto& worker = static_cast<Rollout&>(process);
    if (worker.joined || chance(cluster_.faults.other_machine)) {
      std::vector<const PoolModel*> others;
      for (const PoolModel& pool : cluster_.pools)
        if (worker.joined || pool.name == worker.pool->name) others.push_back(&pool);
      worker.pool = others[static_cast<size_t>(rng_.below(std::ssize(others)))];
    }
    worker.engine = Engine(worker.pool->hardware);
    std::vector<Engine::Id> none;
    worker.engine.advance(now(), none);
  }
  // hands.publish may have killed it (World::Hands): then it connects no more.
  if (&process == &trainer_ && !come_back()) return;
  connect(process);
}

void World::connect(Process& process) {
  process.session = ++sessions_;
  process.connected = true;
  WorkerUp up{.worker = process.id,
              .session = process.session,
              .role = process.role,
              .incarnation = process.incarnation,
              .joined = process.joined};
  if (process.role == Role::kTrainer) up.rank = process.index;
  if (process.role == Role::kReward) up.slots = cluster_.reward_slots;
  if (process.role == Role::kRollout) {
    const PoolModel& pool = *static_cast<Rollout&>(process).pool;
    up.slots = pool.slots;
    up.site = {.pool = pool.name, .hardware = pool.hardware.name};
  }
  tell(up);
  if (&process == &trainer_) greet();
}

void World::kill(Process& process) {
  if (!process.alive) return;
  const FaultModel& faults = cluster_.faults;
  ++totals_.deaths;
  if (hands.on_death) hands.on_death(process.id);
  if (process.role == Role::kRollout) clear(static_cast<Rollout&>(process));
  ++process.life;
  ++process.link;
  process.alive = process.connected = false;
  process.hangs_until = {};
  if (process.role == Role::kReward) static_cast<RewardWorker&>(process).asked.clear();
  if (process.role == Role::kTrainer) {
    static_cast<Rank&>(process).formation = 0;
    static_cast<Rank&>(process).step = 0;
  }
  if (&process == &trainer_) {
    trainer_.save_asked = -1;
    clear_batch();
    trainer_.save_ends = 0;
    trainer_.outbox.clear();
    trainer_.unacknowledged.clear();
  }
  // Nobody comes in place of one that has joined: that is noticed in any case.
  if (process.joined || !chance(faults.unnoticed)) {
    const bool silent = faults.goodbye < 1 && !rng_.chance(faults.goodbye);
    const WorkerDown down{process.id, process.session, silent};
    call(now() + faults.noticed, [this, down, restarts = restarts_] {
      // A scheduler that came back meanwhile has all workers away (law 8.4), and has never seen
      // this session.
      if (restarts_ == restarts) tell(down);
    });
  }
  if (process.joined) return;
  call(now() + faults.noticed + faults.restart, [this, &process] {
    if (!process.alive) start(process);
  });
}

void World::hear(Process& process, const Verify& verify) {
  auto& worker = static_cast<RewardWorker&>(process);
  const std::pair asked{BodyId{verify.lane, verify.lease}, verify.verify_attempt};
  if (!worker.asked.insert(asked).second) return;  // said again
  // Another verification of the attempt takes another time.
  const Episode episode = episodes_.draw(verify.lane, verify.lease.member,
                                         verify.lease.attempt + verify.verify_attempt - 1);
  Reward verdict{.worker = worker.id,
                 .lease = verify.lease,
                 .lane = verify.lane,
                 .verify_attempt = verify.verify_attempt,
                 .reward = episode.reward,
                 .reason = ""};
  if (episode.broken || chance(cluster_.faults.verifier)) {
    // No reward, as a verifier that failed says it: a 0 would be one.
    verdict.reward.reset();
    verdict.reason = "on purpose";
    verdict.task_broken = episode.broken;
  }
  call_on(worker, now() + episode.verify_seconds, [this, &worker, asked, verdict] {
    if (worker.asked.erase(asked) > 0) send(worker, verdict);
  });
}

// Work that is not named here is void.
void World::hear(Process& process, const Hold& hold) {
  const auto held = [&](const BodyId& lease) {
    return std::ranges::find(hold.leases, lease) != hold.leases.end();
  };
  if (process.role == Role::kReward) {
    auto& worker = static_cast<RewardWorker&>(process);
    std::erase_if(worker.asked, [&](const auto& asked) { return !held(asked.first); });
  }
  if (process.role != Role::kRollout) return;
  auto& worker = static_cast<Rollout&>(process);
  advance(worker);
  std::vector<int64_t> void_plays;
  for (const auto& [lease, id] : worker.by_lease)
    if (!held(lease)) void_plays.push_back(id);
  for (const int64_t id : void_plays) drop_play(worker, id);
  arm_engine(worker);
}

void World::hear(Process& process, const Abort& abort) {
  const BodyId lease{abort.lane, abort.lease};
  if (process.role == Role::kReward) {
    auto& worker = static_cast<RewardWorker&>(process);
    std::erase_if(worker.asked, [&](const auto& asked) { return asked.first == lease; });
  }
  if (process.role != Role::kRollout) return;
  auto& worker = static_cast<Rollout&>(process);
  if (!worker.by_lease.contains(lease)) return;
  // Up to now: what has ended by this moment is an answer that crosses the abort (law 6.4), and it
  // is no longer there to be dropped.
  advance(worker);
  const auto play = worker.by_lease.find(lease);
  if (play == worker.by_lease.end()) return;
  drop_play(worker, play->second);
  arm_engine(worker);
}

}  // namespace tailrace::simulator
