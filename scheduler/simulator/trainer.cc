// The trainer of a world, and its reward workers.
#include <algorithm>

#include <fmt/format.h>

#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

namespace {

// Training is exact: whoever trains a version gets the same weights.
std::string digest_of_version(int64_t version) { return fmt::format("v{}", version); }

std::string rank_name(int32_t rank) { return fmt::format("trainer-{}", rank); }

}  // namespace

void World::start_trainer() {
  trainer_.alive = true;
  trainer_.version = trainer_.durable;
  trainer_.step = 0;
  trainer_.whole = false;
  trainer_.items.clear();
  trainer_.incarnation = ++incarnations_;
  trainer_.session = ++sessions_;
  tell(WorkerUp{.worker = kTrainerName,
                .session = trainer_.session,
                .role = Role::kTrainer,
                .incarnation = trainer_.incarnation});
  for (int32_t rank = 1; rank < state_.config.trainer_ranks; ++rank) {
    tell(WorkerUp{.worker = rank_name(rank),
                  .session = ++sessions_,
                  .role = Role::kTrainer,
                  .incarnation = ++incarnations_,
                  .rank = rank});
  }
  if (cluster_.faults.trainer_mean > 0) {
    call(now() + exponential(cluster_.faults.trainer_mean), [this, life = trainer_.life] {
      if (trainer_.life == life) kill_trainer();
    });
  }
  const int64_t version = trainer_.version;
  send(kTrainerName,
       RolledBack{kTrainerName, 0, version, version < 0 ? "" : digest_of_version(version), "m"});
  call(now() + (version < 0 ? cluster_.trainer.warm_up : 0) + 2 * cluster_.wire.delay,
       [this, version, life = trainer_.life] {
         if (trainer_.life != life) return;
         if (version < 0) return publish(0);
         send(kTrainerName, TrainerWants{kTrainerName, 0, version + 1});
       });
}

void World::kill_trainer() {
  if (!trainer_.alive || state_.ended) return;
  trainer_.alive = false;
  ++trainer_.life;
  ++totals_.deaths;
  call(now() + cluster_.faults.noticed, [this, session = trainer_.session] {
    tell(WorkerDown{kTrainerName, session});
  });
  call(now() + cluster_.faults.noticed + cluster_.faults.restart, [this] { start_trainer(); });
}

// Groups are computed one after the other as they come; the update follows the last.
void World::take(const HandOver& batch) {
  if (!trainer_.alive || batch.session != trainer_.session) return;
  if (batch.step != trainer_.version + 1) return;
  if (batch.step != trainer_.step || batch.first == 0) {
    trainer_.step = batch.step;
    trainer_.items.clear();
    trainer_.whole = false;
    trainer_.free_at = now() + cluster_.trainer.step;
    trainer_.busy += cluster_.trainer.step;
  }
  if (batch.first != std::ssize(trainer_.items) || trainer_.whole) return;
  double seconds = 0;
  for (const HandOver::Item& item : batch.items) {
    trainer_.items.push_back(item);
    const Sample& sample = bodies_.at({Lane::kTrain, item.lease});
    seconds += cluster_.trainer.sample +
               cluster_.trainer.token * static_cast<double>(sample.tokens + sample.prompt_tokens);
  }
  trainer_.free_at = std::max(trainer_.free_at, now()) + seconds;
  trainer_.busy += seconds;
  trainer_.handed = now();
  if (!batch.last) return;
  trainer_.whole = true;
  trainer_.busy += cluster_.trainer.update + cluster_.trainer.publish;
  wake(trainer_.free_at + cluster_.trainer.update + cluster_.trainer.publish, WakeKind::kTrained, 0,
       trainer_.life);
}

void World::publish(int64_t version) {
  trainer_.version = version;
  record_step(version);
  published_at_ = now();
  send(kTrainerName, Published{kTrainerName, 0, version, digest_of_version(version), "m"});
  if (version == 0) {
    // Its checkpoint comes before anybody hears of it.
    trainer_.durable = 0;
    send(kTrainerName, Durable{kTrainerName, 0, 0, 0});
  }
  call(now() + 2 * cluster_.wire.delay, [this, version, life = trainer_.life] {
    if (trainer_.life == life) send(kTrainerName, TrainerWants{kTrainerName, 0, version + 1});
  });
}

// Of a step that is trained once more the first time counts.
void World::record_step(int64_t version) {
  if (version == 0 || (!steps_.empty() && steps_.back().step >= version)) return;
  StepRecord record{
      .step = version, .begun = published_at_, .handed = trainer_.handed, .ended = now()};
  std::vector<Sample> samples;
  for (const HandOver::Item& item : trainer_.items) {
    const auto found = bodies_.find({Lane::kTrain, item.lease});
    if (found == bodies_.end()) continue;
    const Sample& sample = found->second;
    ++record.samples;
    record.tokens += sample.tokens;
    record.prompt_tokens += sample.prompt_tokens;
    record.longest = std::max(record.longest, sample.tokens);
    const auto staleness = static_cast<double>(version - 1 - sample.min_version);
    record.staleness_mean += staleness;
    record.staleness_max = std::max(record.staleness_max, staleness);
    for (const auto& [by, tokens] : sample.versions)
      if (by < version - 1) record.old_tokens += tokens;
    if (on_step) samples.push_back(sample);
  }
  if (record.samples > 0) record.staleness_mean /= static_cast<double>(record.samples);
  totals_.trained_tokens += record.tokens;
  steps_.push_back(record);
  if (on_step) on_step(record, samples);
}

void World::verify(const Verify& verify) {
  const auto session = reward_sessions_.find(verify.worker);
  if (session == reward_sessions_.end() || session->second != verify.session) return;
  const Episode episode = episodes_.draw(verify.lane, verify.lease.member);
  const bool fails = cluster_.faults.verifier > 0 && rng_.chance(cluster_.faults.verifier);
  call(now() + episode.verify_seconds, [this, verify, fails, reward = episode.reward] {
    Reward verdict{verify.worker, verify.lease, verify.lane, verify.verify_attempt, reward, ""};
    if (fails) verdict.reward.reset();
    send(verify.worker, std::move(verdict));
  });
}

}  // namespace tailrace::simulator
