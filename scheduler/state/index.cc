#include "scheduler/state/index.h"

namespace tailrace::scheduler {
namespace {

// Replaces an element of a set in a map of sets, which holds no empty ones.
template <class Map, class Key, class Value>
void erase_from(Map& map, const Key& key, const Value& value) {
  const auto it = map.find(key);
  it->second.erase(value);
  if (it->second.empty()) map.erase(it);
}

// The same place in memory, in another order.
void move_seat(Seats& seats, const Seat& from, const Seat& to) {
  if (from == to) return;
  auto seat = seats.extract(from);
  seat.value() = to;
  seats.insert(std::move(seat));
}

}  // namespace

void Index::Load::add(const Load& other, int64_t sign) {
  slots += sign * other.slots;
  leased += sign * other.leased;
  installing += sign * other.installing;
}

const Index::Pool& Index::pool(const PoolId& id) const {
  static const Pool kNone;
  const auto it = pools_.find(id);
  return it == pools_.end() ? kNone : it->second;
}

Index::Load Index::load_of(PolicyId policy) const {
  Load all;
  for (auto it = pools_.lower_bound({policy, {}}); it != pools_.end() && it->first.policy == policy;
       ++it)
    all.add(it->second.load);
  return all;
}

void Index::move_load(const std::optional<std::pair<PoolId, Load>>& from,
                      const std::optional<std::pair<PoolId, Load>>& to) {
  if (from == to) return;
  // A lease that begins or ends: the sizes stay as they are.
  if (from && to && from->first == to->first && from->second.slots == to->second.slots) {
    Pool& pool = pools_[to->first];
    pool.load.add(from->second, -1);
    pool.load.add(to->second);
    return;
  }
  if (from) {
    const auto it = pools_.find(from->first);
    Pool& pool = it->second;
    pool.load.add(from->second, -1);
    const auto size = pool.sizes.find(from->second.slots);
    if (--size->second == 0) pool.sizes.erase(size);
    if (pool.sizes.empty()) pools_.erase(it);
  }
  if (to) {
    Pool& pool = pools_[to->first];
    pool.load.add(to->second);
    ++pool.sizes[to->second.slots];
  }
}

void Index::set(const WorkerId& id, const Entry& then, const Entry& now) {
  if (then.rollout && now.rollout && then.rollout->first == now.rollout->first) {
    move_seat(rollouts_.at(now.rollout->first), then.rollout->second, now.rollout->second);
  } else {
    if (then.rollout) erase_from(rollouts_, then.rollout->first, then.rollout->second);
    if (now.rollout) rollouts_[now.rollout->first].insert(now.rollout->second);
  }
  if (then.reward && now.reward) {
    move_seat(rewards_, *then.reward, *now.reward);
  } else {
    if (then.reward) rewards_.erase(*then.reward);
    if (now.reward) rewards_.insert(*now.reward);
  }
  move_load(then.load, now.load);
  if (then.behind != now.behind) {
    if (then.behind) erase_from(behind_, *then.behind, id);
    if (now.behind) behind_[*now.behind].insert(id);
  }
  const auto say = [&](std::set<WorkerId>& workers, bool before, bool after) {
    if (before == after) return;
    if (before) workers.erase(id);
    if (after) workers.insert(id);
  };
  say(stuck_, then.stuck, now.stuck);
  say(proving_, then.proving, now.proving);
  const auto move = [&](std::set<std::pair<Time, WorkerId>>& times, const std::optional<Time>& from,
                        const std::optional<Time>& to) {
    if (from == to) return;
    if (from) times.erase({*from, id});
    if (to) times.insert({*to, id});
  };
  move(deadlines_, then.deadline, now.deadline);
  move(quarantine_ends_, then.quarantine_end, now.quarantine_end);
}

}  // namespace tailrace::scheduler
