// The scheduler's process of a world dies and comes back: what it wrote, and what it may forget.
// Workers are on other machines, and remember it.
#include <algorithm>

#include "kernels/base/check.h"
#include "scheduler/simulator/world.h"
#include "scheduler/state/archive.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

namespace {

constexpr double kSnapshot = 1.0 / 400;   // chance that one is written behind an event
constexpr double kBodyForgotten = 0.5;    // of one that was not forced to the disk
constexpr double kAllAcknowledged = 0.3;  // by the time that the trainer's next message is told

}  // namespace

void World::write(const Event& event, Time at, const Actions& actions) {
  journal_.push_back({to_bytes(event), at});
  // As Service::commit() does it: one action that needs the disk takes all events before it along.
  if (std::ranges::any_of(actions, needs_disk)) {
    forced_ = journal_.size();
    unforced_bodies_.clear();
  }
  if (!rng_.chance(kSnapshot)) return;
  snapshot_ = to_bytes(state_);
  journal_.clear();
  forced_ = 0;
}

void World::hear_trainer() {
  Trainer& trainer = trainer_;
  if (!trainer.connected || trainer.outbox.empty() || trainer.outbox.front().first > now_) return;
  const Event event = std::move(trainer.outbox.front().second);
  trainer.outbox.pop_front();
  if (keeps_journal_) {
    // The trainer's link sends again what the scheduler has not acknowledged. How much that is at a
    // death is left to chance.
    trainer.unacknowledged.push_back(event);
    if (rng_.chance(kAllAcknowledged)) trainer.unacknowledged.clear();
  }
  tell(event);
}

// The power goes: events and bodies that were not forced to the disk may be gone.
void World::lose_power() {
  fault("power lost");
  const auto left = static_cast<int64_t>(journal_.size() - forced_);
  journal_.resize(forced_ + static_cast<size_t>(rng_.below(left + 1)));
  for (const BodyId& body : unforced_bodies_)
    if (rng_.chance(kBodyForgotten)) (body.turns == 0 ? bodies_ : turns_).erase(body);
}

// Loses a body of an unfinished list, which begins anew for it; another loss would halt the run.
void World::damage_a_part() {
  const Policy& policy = state_.policies.at(0);
  const auto batch = policy.batches.find(policy.frontier + 1);
  if (batch == policy.batches.end() || batch->second.whole || batch->second.tasks.empty()) return;
  const TaskId& task = batch->second.tasks.front();
  bodies_.erase(bodies_of(Lane::kTrain, task, policy.tasks.at(task)).front());
  fault("part damaged");
}

// Reports bodies that the state counts on and the store misses. All others go.
void World::find_lost_bodies() {
  BodiesLost lost;
  std::set<BodyId> held;
  for (const BodyId& body : held_bodies(state_)) {
    held.insert(body);
    if (!(body.turns == 0 ? bodies_ : turns_).contains(body)) lost.bodies.push_back(body);
  }
  const auto is_free = [&](const auto& body) { return !held.contains(body.first); };
  std::erase_if(bodies_, is_free);
  std::erase_if(turns_, is_free);
  unforced_bodies_.clear();
  if (!lost.bodies.empty()) tell(lost);
}

void World::restart(bool power_lost) {
  ++restarts_;
  // Messages that the scheduler's own process was about to send are lost.
  std::erase_if(messages_, [](const auto& message) { return message.second.from == nullptr; });
  for (Process* process : processes()) process->connected = false;
  const State before_it = state_;
  int64_t forgotten = 0;
  if (keeps_journal_) {
    const auto written = std::ssize(journal_);
    if (power_lost) lose_power();
    forgotten = written - std::ssize(journal_);
    auto restored = from_bytes<State>(snapshot_);
    TR_CHECK(restored, "a snapshot does not load");
    for (const Written& line : journal_) {
      const auto event = from_bytes<Event>(line.event);
      TR_CHECK(event, "an event of the journal does not load");
      (void)decide(*restored, *event, line.at);
    }
    state_ = *std::move(restored);
    forced_ = journal_.size();  // it is opened anew, with a snapshot
  }
  if (power_lost && chance(cluster_.faults.damaged)) damage_a_part();
  if (on_restart) on_restart(before_it, forgotten);
  find_lost_bodies();
  Restarted event;
  if (new_rules) event.config = new_rules(state_);
  tell(event);
  // Messages that were not acknowledged come again, before anything new.
  auto& outbox = trainer_.outbox;
  for (auto& [at, message] : outbox) at = now_;
  for (size_t i = trainer_.unacknowledged.size(); i-- > 0;)
    outbox.emplace_front(now_, std::move(trainer_.unacknowledged[i]));
  trainer_.unacknowledged.clear();
  for (Process* process : processes()) {
    if (!process->alive) continue;
    call_on(*process, now() + exponential(cluster_.faults.reconnect), [this, process] {
      if (!process->connected) connect(*process);
    });
  }
}

}  // namespace tailrace::simulator
