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

}  // namespace

Index::Pool Index::pool(PolicyId policy) const {
  const auto it = pools_.find(policy);
  return it == pools_.end() ? Pool{} : it->second;
}

void Index::set(const WorkerId& id, Entry now) {
  Entry& old = entries_[id];
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
  old = std::move(now);
}

void Index::erase(const WorkerId& id) {
  set(id, {});
  entries_.erase(id);
}

}  // namespace tailrace::scheduler
