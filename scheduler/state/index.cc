#include "scheduler/state/index.h"

namespace tailrace::scheduler {
namespace {

// A worker's seat follows its room; without room it has none.
void move_seat(Seats& seats, const Seat& from, bool has_faults, int64_t room) {
  if (from.room > 0 && room > 0) {
    if (from.room == room && from.has_faults == has_faults) return;
    // The same place in memory, in another order.
    auto seat = seats.extract(from);
    seat.value().has_faults = has_faults;
    seat.value().room = room;
    seats.insert(std::move(seat));
  } else if (from.room > 0) {
    seats.erase(from);
  } else if (room > 0) {
    seats.insert({has_faults, room, from.worker});
  }
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

const Index::Load& Index::load_of(PolicyId policy) const {
  static const Load kNone;
  const auto it = loads_.find(policy);
  return it == loads_.end() ? kNone : it->second;
}

void Index::add_seat(const WorkerId& id, const Entry& entry) {
  if (!entry.version) return;
  Open& open = pools_[entry.pool].versions[*entry.version];
  ++open.workers;
  move_seat(open.seats, {false, 0, id}, entry.has_faults, entry.room);
  num_seats_ += entry.room > 0;
}

void Index::drop_seat(const WorkerId& id, const Entry& entry) {
  if (!entry.version) return;
  const auto pool = pools_.find(entry.pool);
  const auto open = pool->second.versions.find(*entry.version);
  move_seat(open->second.seats, {entry.has_faults, entry.room, id}, false, 0);
  // No empty entry stays, here and below: two indexes of the same workers must be equal, whatever
  // happened before (index_is_right()).
  if (--open->second.workers == 0) pool->second.versions.erase(open);
  if (pool->second == Pool()) pools_.erase(pool);
  num_seats_ -= entry.room > 0;
}

void Index::add_load(const Entry& entry, int64_t sign) {
  if (!entry.load) return;
  const auto pool = pools_.try_emplace(entry.pool).first;
  pool->second.load.add(*entry.load, sign);
  const auto size = pool->second.sizes.try_emplace(entry.load->slots).first;
  if ((size->second += sign) == 0) pool->second.sizes.erase(size);
  if (pool->second == Pool()) pools_.erase(pool);
  Load& all = loads_[entry.pool.policy];
  all.add(*entry.load, sign);
  if (all == Load()) loads_.erase(entry.pool.policy);
}

int64_t Index::num_samplers(const PoolId& pool) const {
  const auto it = samplers_.find(pool);
  return it == samplers_.end() ? 0 : it->second;
}

int64_t Index::num_samplers(PolicyId policy) const {
  const auto it = all_samplers_.find(policy);
  return it == all_samplers_.end() ? 0 : it->second;
}

void Index::add_sampler(const Entry& entry, int64_t sign) {
  if (!entry.samples) return;
  const auto add = [&](auto& counts, const auto& key) {
    const auto it = counts.try_emplace(key).first;
    if ((it->second += sign) == 0) counts.erase(it);
  };
  add(samplers_, entry.pool);
  add(all_samplers_, entry.pool.policy);
}

void Index::set(const WorkerId& id, const Entry& then, const Entry& now) {
  num_verifiers_ += now.verifies - then.verifies;
  if (then.samples != now.samples || then.pool != now.pool) {
    add_sampler(then, -1);
    add_sampler(now, 1);
  }
  // Each part that has not changed is left alone, because each costs a search (law 14.5).
  if (then.version != now.version || then.pool != now.pool || then.room != now.room ||
      then.has_faults != now.has_faults) {
    drop_seat(id, then);
    add_seat(id, now);
  }
  if (then.verifies || now.verifies) {
    move_seat(rewards_, {then.has_faults, then.verifies ? then.room : 0, id}, now.has_faults,
              now.verifies ? now.room : 0);
  }
  if (then.load != now.load || then.pool != now.pool) {
    add_load(then, -1);
    add_load(now, 1);
  }
  const auto is_behind = [](const Entry& entry) { return entry.step != InstallStep::kNone; };
  if (is_behind(then) != is_behind(now) || then.pool.policy != now.pool.policy) {
    if (is_behind(then)) {
      const auto workers = behind_.find(then.pool.policy);
      workers->second.erase(id);
      if (workers->second.empty()) behind_.erase(workers);
    }
    if (is_behind(now)) behind_[now.pool.policy].insert(id);
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
  move(wakes_, then.wake, now.wake);
}

void Index::add_leases(const WorkerId& id, Entry& entry, int64_t count) {
  // The seat and the load of a plain worker are all that changes with its leases, so that a grant
  // does not make the whole entry anew.
  const int64_t room = entry.room - count;
  const Seat from{entry.has_faults, entry.room, id};
  entry.room = room;
  if (entry.verifies) move_seat(rewards_, from, entry.has_faults, room);
  if (!entry.version && !entry.load) return;
  Pool& pool = pools_.at(entry.pool);
  if (entry.version) {
    move_seat(pool.versions.at(*entry.version).seats, from, entry.has_faults, room);
    num_seats_ += (room > 0) - (from.room > 0);
  }
  if (entry.load) {
    entry.load->leased += count;
    pool.load.leased += count;
    loads_[entry.pool.policy].leased += count;
  }
}

}  // namespace tailrace::scheduler
