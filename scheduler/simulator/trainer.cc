// The trainer of a world, with all its ranks.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/group_signal.h"
#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

// Training is exact, unless a fault says otherwise: whoever trains a version gets the same weights.
const Digest& World::digest_of(int64_t version) {
  Digest& digest = digests_[version];
  if (digest.empty())
    digest =
        lineages_ == 0 ? fmt::format("v{}", version) : fmt::format("v{}-{}", version, lineages_);
  return digest;
}

Digest World::master_of(int64_t version) {
  return fmt::format("master{}-{}", version,
                     masters_.try_emplace(version, lineages_).first->second);
}

// Seconds of what it has been given.
double World::still_to_compute() const {
  return std::max(0.0, trainer_.free_at - std::max(now(), trainer_.save_ends));
}

void World::clear_batch() {
  // A list counts as work when it is heard (hear()), so that the part which is not done any more
  // has to be taken back.
  trainer_.busy -= still_to_compute();
  trainer_.free_at = 0;
  ++trainer_.work;
  trainer_.step = 0;
  trainer_.items.clear();
  trainer_.whole = trainer_.computed = false;
  // A checkpoint that was asked for in the midst of the step begins where that has ended.
  const int64_t asked = std::exchange(trainer_.save_asked, -1);
  if (asked >= 0 && asked == trainer_.version) begin_save(asked);
}

// A new process goes on from the newest checkpoint.
bool World::come_back() {
  const FaultModel& faults = cluster_.faults;
  std::deque<int64_t>& checkpoints = trainer_.checkpoints;
  if (checkpoints.size() > 1 && chance(faults.damaged_checkpoint)) {
    checkpoints.pop_back();
    fault("damaged checkpoint");
  }
  trainer_.version = checkpoints.empty() ? -1 : checkpoints.back();
  if (trainer_.version >= 0 && chance(faults.other_weights)) {
    // The other weights are the checkpoint's own, or those trained from there.
    ++lineages_;
    const bool of_checkpoint = rng_.chance(0.5);
    // The digest that is published of other weights may be the same.
    const bool looks_alike = rng_.chance(0.2);
    const auto forget = [&](auto& map, auto from) { map.erase(from, map.end()); };
    const int64_t version = trainer_.version;
    if (of_checkpoint) masters_.erase(version);
    if (of_checkpoint && !looks_alike) digests_.erase(version);
    if (!of_checkpoint || rng_.chance(0.5)) {
      forget(masters_, masters_.upper_bound(version));
      if (!looks_alike) forget(digests_, digests_.upper_bound(version));
    }
    if (looks_alike) fault("other weights that look alike");
    fault("other weights");
  }
  if (trainer_.version >= 0) return put_weights(trainer_.version);
  call_on(trainer_, now() + cluster_.trainer.warm_up, [this] { publish(0); });
  return true;
}

// False: it died meanwhile.
bool World::put_weights(int64_t version) {
  if (hands.publish) {
    const int64_t life = trainer_.life;
    hands.publish(version, digest_of(version));
    if (trainer_.life != life) return false;
  }
  published_weights_.insert(version);
  return true;
}

// In a new session it says what it holds, and asks.
void World::greet() {
  const int64_t version = trainer_.version;
  say_as_trainer(RolledBack{kTrainerName, 0, version, version < 0 ? "" : digest_of(version), "m",
                            version < 0 ? "" : master_of(version)});
  if (version >= 0) say_as_trainer(TrainerWants{kTrainerName, 0, version + 1});
  // Messages that it could not send before.
  for (size_t i = 0; i < trainer_.outbox.size(); ++i)
    wake(seconds_of(trainer_.outbox[i].first), WakeKind::kTrainerSays);
}

void World::say_as_trainer(Event event) {
  trainer_.said = std::max(trainer_.said, now() + delay());
  trainer_.outbox.emplace_back(to_time(trainer_.said), std::move(event));
  wake(trainer_.said, WakeKind::kTrainerSays);
}

namespace {

// The groups in `items` whose rewards are equal.
std::set<TaskId> groups_of_equals(const std::vector<HandOver::Item>& items) {
  std::map<TaskId, GroupSignal> signals;
  for (const HandOver::Item& item : items)
    signals[task_of(item.lease.member)].add(item.reward, item.judged);
  std::set<TaskId> equal;
  for (const auto& [group, signal] : signals)
    if (!signal.has()) equal.insert(group);
  return equal;
}

}  // namespace

// Groups are computed one after the other as they come; the update follows the last.
void World::hear(Process& process, const HandOver& batch) {
  if (batch.copy) {
    if (!batch.last) return;
    static_cast<Rank&>(process).step = batch.step;
    if (trainer_.computed) end_step();
    return;
  }
  // A list that crossed a publication or a rollback on its way is void.
  if (batch.step != trainer_.version + 1) return;
  if (batch.step != trainer_.step || batch.first == 0) {
    clear_batch();
    trainer_.step = batch.step;
    trainer_.free_at = std::max(now(), trainer_.save_ends) + cluster_.trainer.step;
    trainer_.busy += cluster_.trainer.step;
  }
  if (batch.first != std::ssize(trainer_.items) || trainer_.whole) return;
  double seconds = 0;
  const std::set<TaskId> equal =
      cluster_.trainer.drops_equal_groups ? groups_of_equals(batch.items) : std::set<TaskId>();
  for (const HandOver::Item& item : batch.items) {
    trainer_.items.push_back(item);
    if (equal.contains(task_of(item.lease.member))) continue;
    const auto body = bodies_.find({Lane::kTrain, item.lease});
    if (body == bodies_.end()) continue;  // withdrawn while the batch was under way
    const Sample& sample = body->second;
    const int64_t tokens = sample.prompt_tokens + sample.tokens + sample.env_tokens;
    seconds += cluster_.trainer.sample + cluster_.trainer.token * static_cast<double>(tokens);
  }
  trainer_.free_at = std::max(trainer_.free_at, now()) + seconds;
  trainer_.busy += seconds;
  trainer_.handed = now();
  if (!batch.last) return;
  trainer_.whole = true;
  const double update = cluster_.trainer.update + cluster_.trainer.publish;
  trainer_.free_at += update;
  trainer_.busy += update;
  wake(trainer_.free_at, WakeKind::kTrained, 0, trainer_.work);
}

void World::hear(Process& process, const FormRanks& ranks) {
  auto& rank = static_cast<Rank&>(process);
  rank.formation = ranks.formation;
  rank.step = 0;
  if (&process == &trainer_) clear_batch();
}

// It ends with all ranks. Until then rank 0 waits: for one that has yet to hear of it, or, where
// one has gone, for the word to meet anew.
void World::end_step() {
  trainer_.computed = true;
  bool all = true;
  for (const Rank& rank : ranks_) {
    const bool met = rank.alive && rank.formation == trainer_.formation;
    if (!met) fault("a step without a rank");
    all = all && met && rank.step == trainer_.step;
  }
  if (all) publish(trainer_.step);
}

void World::publish(int64_t version) {
  // Files come before words, as in the trainer: a version is fetched as soon as somebody hears of
  // it.
  if (!put_weights(version)) return;
  trainer_.version = version;
  record_step(version);
  clear_batch();
  published_at_ = now();
  // Its checkpoint comes before anybody hears of it.
  if (version == 0) save(0);
  say_as_trainer(Published{kTrainerName, 0, version, digest_of(version), "m", master_of(version)});
  if (version == 0) say_as_trainer(Durable{kTrainerName, 0, 0, trainer_.checkpoints.front()});
  say_as_trainer(TrainerWants{kTrainerName, 0, version + 1});
}

// It does one thing at a time: a checkpoint begins behind what it computes, and holds up the rest.
// While it ends a step it hears nothing, and what it then hears of the version before is void.
void World::hear(Process&, const Save& request) {
  if (trainer_.version != request.version) return;
  if (trainer_.whole) {
    trainer_.save_asked = request.version;
  } else {
    begin_save(request.version);
  }
}

void World::hear(Process&, const ReleaseWeights& release) {
  if (hands.release) hands.release(release);
  published_weights_.erase(published_weights_.begin(),
                           published_weights_.lower_bound(release.below));
}

void World::begin_save(int64_t version) {
  trainer_.save_ends =
      std::max({now(), trainer_.save_ends, trainer_.free_at}) + cluster_.trainer.save;
  if (trainer_.step > 0) trainer_.free_at = trainer_.save_ends;
  call_on(trainer_, trainer_.save_ends, [this, version] {
    save(version);
    say_as_trainer(Durable{kTrainerName, 0, version, trainer_.checkpoints.front()});
  });
}

void World::save(int64_t version) {
  std::deque<int64_t>& checkpoints = trainer_.checkpoints;
  // A trainer that came back with an older one writes those since once more.
  std::erase_if(checkpoints, [&](int64_t kept) { return kept >= version; });
  checkpoints.push_back(version);
  while (std::ssize(checkpoints) > cluster_.trainer.keep_last) checkpoints.pop_front();
}

// When a step is trained once more, its first record counts.
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
    record.prompt_tokens += sample.prompt_tokens + sample.env_tokens;
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

}  // namespace tailrace::simulator
