#include "scheduler/state/index.h"

#include "scheduler/state/state.h"

namespace tailrace::scheduler {
namespace {

// Holds the newest version, or is on its way to one: that install is left to end first.
bool up_to_date(const State& state, const Worker& worker) {
  const Policy& policy = state.policies.at(worker.policy);
  switch (worker.phase) {
    case WorkerPhase::kClosed:
      return false;
    // The weights of another lineage are not worth the wait: the new install replaces this one.
    case WorkerPhase::kInstalling:
      return on_lineage(policy, worker.target, worker.target_digest);
    case WorkerPhase::kOpen:
      return worker.version == policy.frontier && on_lineage(policy, worker.version, worker.digest);
  }
  return false;
}

bool should_install(const State& state, const WorkerId& id, const Worker& worker) {
  if (worker.role != Role::kRollout || !worker.connected || in_quarantine(state, id)) return false;
  if (state.config.mode.install == InstallWhen::kDrained && worker.leased > 0) return false;
  return state.policies.contains(worker.policy) && !up_to_date(state, worker);
}

// Replaces an element of a set in a map of sets, which holds no empty ones.
template <class Map, class Key, class Value>
void erase_from(Map& map, const Key& key, const Value& value) {
  const auto it = map.find(key);
  it->second.erase(value);
  if (it->second.empty()) map.erase(it);
}

}  // namespace

Index::Pool Index::pool(PolicyId policy) const {
  const auto it = pools_.find(policy);
  return it == pools_.end() ? Pool{} : it->second;
}

Index::Entry Index::entry_of(const State& state, const WorkerId& id, const Worker& worker) {
  Entry entry;
  const bool faults = has_faults(state, id);
  const int64_t room = worker.connected ? usable_slots(state, id, worker) - worker.leased : 0;
  if (room > 0 && worker.role == Role::kReward) entry.reward = Seat{faults, room, id};
  if (room > 0 && worker.role == Role::kRollout && worker.phase == WorkerPhase::kOpen)
    entry.rollout = {{worker.policy, worker.version}, Seat{faults, room, id}};
  // One that has failed is not waited for: it may hang.
  if (worker.role == Role::kRollout && worker.connected && !faults) {
    const bool installing = worker.phase == WorkerPhase::kInstalling;
    entry.part = {worker.policy, Pool{worker.slots, worker.leased, installing ? 1 : 0}};
  }
  if (should_install(state, id, worker)) entry.behind = worker.policy;
  if (!worker.connected) {
    entry.deadline = worker.reconnect_deadline;
  } else if (worker.phase == WorkerPhase::kInstalling) {
    entry.deadline = worker.install_deadline;
  }
  if (in_quarantine(state, id)) entry.quarantine_end = state.health.at(id).until;
  return entry;
}

void Index::replace(const WorkerId& id, const Entry& old, const Entry& now) {
  if (old.rollout != now.rollout) {
    if (old.rollout) erase_from(rollouts_, old.rollout->first, old.rollout->second);
    if (now.rollout) rollouts_[now.rollout->first].insert(now.rollout->second);
  }
  if (old.reward != now.reward) {
    if (old.reward) rewards_.erase(*old.reward);
    if (now.reward) rewards_.insert(*now.reward);
  }
  if (old.part != now.part) {
    const auto add = [&](const std::pair<PolicyId, Pool>& part, int64_t sign) {
      Pool& pool = pools_[part.first];
      pool.slots += sign * part.second.slots;
      pool.leased += sign * part.second.leased;
      pool.installing += sign * part.second.installing;
      if (pool == Pool{}) pools_.erase(part.first);
    };
    if (old.part) add(*old.part, -1);
    if (now.part) add(*now.part, 1);
  }
  if (old.behind != now.behind) {
    if (old.behind) erase_from(behind_, *old.behind, id);
    if (now.behind) behind_[*now.behind].insert(id);
  }
  const auto move = [&](std::set<std::pair<Time, WorkerId>>& times, const std::optional<Time>& from,
                        const std::optional<Time>& to) {
    if (from == to) return;
    if (from) times.erase({*from, id});
    if (to) times.insert({*to, id});
  };
  move(deadlines_, old.deadline, now.deadline);
  move(quarantine_ends_, old.quarantine_end, now.quarantine_end);
}

void touch(State& state, const WorkerId& id) {
  Index& index = state.index;
  const auto worker = state.workers.find(id);
  Index::Entry& entry = index.entries_[id];
  if (worker == state.workers.end()) {
    index.replace(id, entry, {});
    index.entries_.erase(id);
    return;
  }
  Index::Entry now = Index::entry_of(state, id, worker->second);
  index.replace(id, entry, now);
  entry = std::move(now);
}

Index make_index(const State& state) {
  Index index;
  for (const auto& [id, worker] : state.workers) {
    Index::Entry entry = Index::entry_of(state, id, worker);
    index.replace(id, {}, entry);
    index.entries_.emplace(id, std::move(entry));
  }
  return index;
}

}  // namespace tailrace::scheduler
