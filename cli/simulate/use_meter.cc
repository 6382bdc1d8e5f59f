#include "cli/simulate/use_meter.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "core/base/random.h"

namespace tailrace {

using namespace scheduler;  // events and actions

namespace {

constexpr PolicyId kOnlyPolicy = 0;

size_t index_of(Use use) { return static_cast<size_t>(use); }
size_t index_of(Role role) { return static_cast<size_t>(role); }

}  // namespace

size_t UseMeter::Hash::operator()(const WorkId& work) const {
  const MemberId& member = work.member;
  return tailrace::mix(
      {static_cast<uint64_t>(work.lane), static_cast<uint64_t>(member.dataset),
       static_cast<uint64_t>(member.epoch), static_cast<uint64_t>(member.prompt),
       static_cast<uint64_t>(member.launch) << 32 ^ static_cast<uint64_t>(member.member)});
}

void UseMeter::observe(const Event& event, const Actions& actions, const State& after) {
  pass(after.now);
  if (const auto* result = std::get_if<AttemptResult>(&event))
    take_lease({result->lane, result->lease.member}, after);
  if (const auto* reward = std::get_if<Reward>(&event))
    take_lease({reward->lane, reward->lease.member}, after);
  take_actions(actions, after);
  if (const auto* up = std::get_if<WorkerUp>(&event)) refresh(up->worker, after);
  if (const auto* down = std::get_if<WorkerDown>(&event)) refresh(down->worker, after);
  if (const auto* staged = std::get_if<Staged>(&event)) refresh(staged->worker, after);
  if (const auto* installed = std::get_if<Installed>(&event)) refresh(installed->worker, after);
  if (const auto* failed = std::get_if<InstallFailed>(&event)) refresh(failed->worker, after);
  // Every lease begins with an action; one that ends may have none.
  if (held_.size() != after.leases.size()) compare_all(after);
  const scheduler::Policy& policy = after.policies.at(kOnlyPolicy);
  for (const Action& action : actions)
    if (const auto* save = std::get_if<Save>(&action)) saving_ = save->version;
  // It stays what was asked for last, also when it is done.
  const auto* durable = std::get_if<Durable>(&event);
  if (policy.saving != saving_ || (durable != nullptr && durable->version == saving_)) saving_ = -1;
  trains_ = policy.handed || policy.told > 0;
  warms_up_ = policy.published < 0;
}

// The uses since the last event lasted until now.
void UseMeter::pass(Time now) {
  // A quarantine ends by its time, without an event.
  while (!rests_.empty() && rests_.begin()->first <= now) {
    const WorkerId id = rests_.begin()->second;
    rests_.erase(rests_.begin());
    const auto worker = workers_.find(id);
    if (worker == workers_.end() || !worker->second.rests) continue;
    place(worker->second, -1);
    worker->second.rests = false;
    place(worker->second, 1);
  }
  if (now <= now_) return;
  const double seconds = seconds_of(now - now_);
  now_ = now;
  const bool is_saving = saving_ >= 0;
  UseCounts counts = counts_;
  // These are states of the policy, and not sums of what workers hold.
  counts[index_of(Use::kTrain)] = trains_;
  counts[index_of(Use::kSave)] = is_saving;
  counts[index_of(Use::kForWeights)] = warms_up_;
  counts[index_of(Use::kInstall)] = places_[index_of(Role::kRollout)].installing;
  const auto add = [&](Role role, Use use, double places) {
    seconds_[index_of(role)][index_of(use)] += seconds * std::max(0.0, places);
  };
  add(Role::kRollout, Use::kGenerate, counts[index_of(Use::kGenerate)]);
  add(Role::kRollout, Use::kEvaluate, counts[index_of(Use::kEvaluate)]);
  add(Role::kReward, Use::kVerify, counts[index_of(Use::kVerify)] + counts[kEvalVerify]);
  for (const Role role : {Role::kRollout, Role::kReward, Role::kTrainer}) {
    const Places& places = places_[index_of(role)];
    if (role != Role::kTrainer || (!trains_ && !is_saving && !warms_up_)) {
      const Use why = why_idle(role, counts);
      add(role, why, places.free);
    } else {
      add(role, is_saving ? Use::kSave : trains_ ? Use::kTrain : Use::kWarmUp, places.free);
    }
    add(role, Use::kForEvaluation, places.evaluating);
    add(role, Use::kInstall, places.installing);
    add(role, Use::kQuarantined, places.resting);
    add(role, Use::kAway, places.away);
  }
}

void UseMeter::take_actions(const Actions& actions, const State& state) {
  for (const Action& action : actions) {
    if (const auto* grant = std::get_if<Grant>(&action)) {
      take_lease({grant->lane, grant->lease.member}, state);
    } else if (const auto* verify = std::get_if<Verify>(&action)) {
      take_lease({verify->lane, verify->lease.member}, state);
    } else if (const auto* abort = std::get_if<Abort>(&action)) {
      take_lease({abort->lane, abort->lease.member}, state);
    } else if (const auto* stage = std::get_if<Stage>(&action)) {
      refresh(stage->worker, state);
    } else if (const auto* change = std::get_if<Switch>(&action)) {
      refresh(change->worker, state);
    } else if (const auto* quarantine = std::get_if<Quarantine>(&action)) {
      // A later word shortens or prolongs the one before: the earlier end is forgotten.
      const auto worker = workers_.find(quarantine->worker);
      if (worker == workers_.end()) continue;
      place(worker->second, -1);
      worker->second.rests = quarantine->until > state.now;
      place(worker->second, 1);
      std::erase_if(rests_, [&](const auto& rest) { return rest.second == quarantine->worker; });
      if (worker->second.rests) rests_.emplace(quarantine->until, quarantine->worker);
    }
  }
}

void UseMeter::take_lease(const WorkId& work, const State& state) {
  const Lease* lease = state.leases.find(work);
  const auto held = held_.find(work);
  const bool verifies = lease != nullptr && lease->kind == LeaseKind::kVerify;
  if (held != held_.end()) {
    const Held& known = held->second;
    if (lease != nullptr && known.verifies == verifies && known.worker == lease->worker &&
        known.attempt == lease->attempt && known.verify_attempt == lease->verify_attempt)
      return;
    end_lease(work);
  }
  if (lease == nullptr) return;
  const Held fresh{lease->worker, lease->attempt, lease->verify_attempt, work.lane, verifies};
  held_.emplace(work, fresh);
  count_of(fresh) += 1;
  Worker& worker = workers_[lease->worker];
  place(worker, -1);
  ++worker.held;
  worker.held_out += !verifies && work.lane == Lane::kEval;
  place(worker, 1);
}

void UseMeter::end_lease(const WorkId& work) {
  const auto held = held_.find(work);
  count_of(held->second) -= 1;
  Worker& worker = workers_[held->second.worker];
  place(worker, -1);
  --worker.held;
  worker.held_out -= !held->second.verifies && work.lane == Lane::kEval;
  place(worker, 1);
  held_.erase(held);
}

// Leases have ended that no action names: their time was up, or their workers have gone.
void UseMeter::compare_all(const State& state) {
  std::vector<WorkId> ended;
  for (const auto& [work, held] : held_)
    if (!state.leases.contains(work)) ended.push_back(work);
  for (const WorkId& work : ended) end_lease(work);
  for (auto& [id, worker] : workers_) refresh(id, state);
}

// Each change of a worker stands between a place(.., -1) and a place(.., 1): it leaves the sums as
// it was and comes back as it is, and nobody walks over all workers.
void UseMeter::refresh(const WorkerId& id, const State& state) {
  const auto found = state.workers.find(id);
  Worker& worker = workers_[id];
  place(worker, -1);
  worker.connected = found != state.workers.end() && found->second.connected;
  if (found != state.workers.end()) {
    worker.role = found->second.role;
    worker.slots = found->second.role == Role::kTrainer ? 1 : found->second.slots;
    worker.installs = worker.connected && is_asked(found->second);
  }
  place(worker, 1);
}

void UseMeter::place(const Worker& worker, double sign) {
  Places& places = places_[index_of(worker.role)];
  const auto idle = static_cast<double>(std::max<int64_t>(0, worker.slots - worker.held));
  double& group = !worker.connected     ? places.away
                  : worker.installs     ? places.installing
                  : worker.rests        ? places.resting
                  : worker.held_out > 0 ? places.evaluating
                                        : places.free;
  group += sign * idle;
}

double& UseMeter::count_of(const Held& held) {
  if (held.verifies)
    return counts_[held.lane == Lane::kEval ? kEvalVerify : index_of(Use::kVerify)];
  return counts_[index_of(held.lane == Lane::kEval ? Use::kEvaluate : Use::kGenerate)];
}

UseShares UseMeter::shares(Role role) const {
  UseShares shares = seconds_[index_of(role)];
  double all = 0;
  for (const double seconds : shares) all += seconds;
  for (double& share : shares) share = all > 0 ? share / all : 0;
  return shares;
}

}  // namespace tailrace
