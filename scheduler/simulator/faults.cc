// The faults of a world, and their times.
#include "scheduler/simulator/world.h"
#include "scheduler/state/expects.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

void World::repeat(double mean, std::function<void()> fault, double pause) {
  if (mean <= 0) return;
  call(now() + exponential(mean), [this, mean, pause, fault = std::move(fault)] {
    if (now() >= cluster_.faults.until) return;
    fault();
    if (pause <= 0) return repeat(mean, fault);
    call(now() + pause, [this, mean, pause, fault] { repeat(mean, fault, pause); });
  });
}

void World::arm_faults() {
  const FaultModel& faults = cluster_.faults;
  for (Process* process : processes()) {
    const auto mean = [&] {
      if (process == &trainer_) return faults.trainer_mean;
      if (process->role == Role::kTrainer) return faults.rank_mean;
      return process->role == Role::kReward ? faults.reward_mean : faults.rollout_mean;
    };
    // From when the next process is there.
    repeat(
        mean(), [this, process] { kill(*process); }, faults.noticed + faults.restart);
    repeat(faults.cut_mean, [this, process] { cut(*process); });
    if (process->role == Role::kTrainer) continue;
    repeat(faults.hang_mean, [this, process] { hang(*process); });
    if (process->role == Role::kReward) continue;
    auto& worker = static_cast<Rollout&>(*process);
    repeat(faults.alarm_mean, [this, &worker] { alarm(worker); });
    repeat(faults.failed_mean, [this, &worker] { fail(worker); });
    if (worker.joined) repeat(faults.join_mean, [this, &worker] { join_or_leave(worker); });
  }
  repeat(faults.stop_mean, [this] { tell(StopRequested{}); });
  repeat(faults.scheduler_mean, [this] { restart(chance(cluster_.faults.power_lost)); });
  repeat(faults.pause_mean, [this] {
    now_ += Time(static_cast<int64_t>(cluster_.faults.pause * 1e9));
    tell(Tick{});
  });
  repeat(faults.clock_mean, [this] { tell(Tick{}, now_ - std::chrono::seconds(1)); });
}

void World::cut(Process& process) {
  if (!process.connected) return;
  ++process.link;
  process.connected = false;
  if (chance(cluster_.faults.silent)) tell(WorkerDown{process.id, process.session, true});
  call_on(process, now() + exponential(cluster_.faults.reconnect), [this, &process] {
    if (!process.connected) connect(process);
  });
}

// It does nothing but heartbeat.
void World::hang(Process& process) {
  const FaultModel& faults = cluster_.faults;
  if (!process.alive || process.hangs_until > now_) return;
  process.hangs_until = to_time(now() + faults.hang);
  if (process.role != Role::kRollout) return;
  auto& worker = static_cast<Rollout&>(process);
  advance(worker);
  worker.engine.stall(faults.hang);
  arm_engine(worker);
  if (faults.hang_noticed >= faults.hang) return;
  call(now() + faults.hang_noticed, [this, &worker, life = worker.life] {
    if (worker.life == life) tell_stalled(worker, true);
  });
  call_on(worker, now() + faults.hang, [this, &worker] { tell_stalled(worker, false); });
}

void World::tell_stalled(Rollout& worker, bool stalled) {
  const Stalled event{worker.id, worker.session, stalled};
  // Sends what a ProgressWatch would say: nothing of a worker that is away, and no word twice.
  if (worker.connected && expects(state_, event)) tell(event);
}

void World::alarm(Rollout& worker) {
  if (!worker.connected || worker.hangs_until > now_) return;
  fault("false alarm");
  tell_stalled(worker, true);
  call_on(worker, now() + cluster_.faults.hang, [this, &worker] { tell_stalled(worker, false); });
}

// Before the run has begun it would halt it (law 7.1).
void World::fail(Rollout& worker) {
  if (!worker.connected || !state_.begun) return;
  send(worker, WorkerFailed{worker.id, "on purpose"});
  hang(worker);
}

void World::join_or_leave(Rollout& worker) {
  if (!worker.alive) {
    fault("joined");
    return start(worker);
  }
  if (!worker.connected) return;
  fault("left");
  if (hands.on_death) hands.on_death(worker.id);
  clear(worker);
  ++worker.life;
  ++worker.link;
  worker.alive = worker.connected = false;
  tell(WorkerDown{worker.id, worker.session, /*silent=*/false});
}

}  // namespace tailrace::simulator
