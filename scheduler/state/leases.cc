#include "scheduler/state/leases.h"

#include "kernels/base/check.h"

namespace tailrace::scheduler {

uint32_t hash_of(const WorkId& work) {
  const MemberId& id = work.member;
  const auto wide = [](int32_t high, int32_t low) {
    return static_cast<uint64_t>(high) << 32 ^ static_cast<uint32_t>(low);
  };
  return mix({wide(static_cast<int32_t>(work.lane), id.policy), static_cast<uint64_t>(id.epoch),
              static_cast<uint64_t>(id.prompt), wide(id.dataset, id.launch),
              static_cast<uint64_t>(id.member)});
}

const int32_t* Leases::search(const WorkId& work) const {
  return places_.find(hash_of(work), [&](int32_t place) {
    return entries_[static_cast<size_t>(place)].work == work;
  });
}

Leases::Entry& Leases::entry_of(const WorkId& work) {
  const int32_t* place = search(work);
  TR_CHECK(place != nullptr, "{} has no lease", to_string(work.member));
  return entries_[static_cast<size_t>(*place)];
}

const int32_t* Leases::search_holder(const WorkerId& worker) const {
  return holders_.find(hash_of(worker), [&](int32_t holder) {
    return held_[static_cast<size_t>(holder)].worker == worker;
  });
}

int32_t Leases::holder_of(const WorkerId& worker) {
  if (const int32_t* known = search_holder(worker)) return *known;
  if (free_holders_.empty()) {
    free_holders_.push_back(static_cast<int32_t>(held_.size()));
    held_.emplace_back();
  }
  const int32_t holder = free_holders_.back();
  free_holders_.pop_back();
  held_[static_cast<size_t>(holder)].worker = worker;
  holders_.insert(hash_of(worker), holder);
  return holder;
}

// The memory of its list stays for the next one.
void Leases::let_holder_go(int32_t holder) {
  Held& held = held_[static_cast<size_t>(holder)];
  holders_.erase(hash_of(held.worker), [&](int32_t other) { return other == holder; });
  held.worker.clear();
  free_holders_.push_back(holder);
}

const Lease* Leases::find(const WorkId& work) const {
  const int32_t* place = search(work);
  return place == nullptr ? nullptr : &entries_[static_cast<size_t>(*place)].lease;
}

const Lease& Leases::at(const WorkId& work) const {
  return const_cast<Leases*>(this)->entry_of(work).lease;
}

const Lease& Leases::add(const WorkId& work, Lease lease) {
  const uint32_t hash = hash_of(work);
  const bool held_already = places_.find(hash, [&](int32_t place) {
    return entries_[static_cast<size_t>(place)].work == work;
  }) != nullptr;
  TR_CHECK(!held_already, "a second lease of one member");
  // The three vectors grow together: a place that is free has an entry, a holding and a position in
  // the heap that nobody reads until it is taken again.
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(entries_.size()));
    entries_.emplace_back();
    holdings_.emplace_back();
    heap_at_.emplace_back();
  }
  const int32_t place = free_.back();
  free_.pop_back();
  Entry& entry = entries_[static_cast<size_t>(place)];
  const int32_t holder = holder_of(lease.worker);
  Held& its = held_[static_cast<size_t>(holder)];
  its.places.push_back(place);
  its.held_out += work.lane == Lane::kEval;
  holdings_[static_cast<size_t>(place)] = {holder, static_cast<int32_t>(its.places.size() - 1)};
  entry = {work, std::move(lease)};
  places_.insert(hash, place);
  soonest_.emplace_back();
  settle(soonest_.size() - 1, {entry.lease.deadline, place});
  return entry.lease;
}

Lease Leases::take(const WorkId& work) {
  int32_t place = 0;
  const bool held = places_.erase(hash_of(work), [&](int32_t other) {
    place = other;
    return entries_[static_cast<size_t>(other)].work == work;
  });
  TR_CHECK(held, "{} has no lease", to_string(work.member));
  free_.push_back(place);
  Entry& entry = entries_[static_cast<size_t>(place)];
  // The last one takes its place, in its worker's list and in the heap.
  const Holding holding = holdings_[static_cast<size_t>(place)];
  Held& its = held_[static_cast<size_t>(holding.holder)];
  its.held_out -= work.lane == Lane::kEval;
  holdings_[static_cast<size_t>(its.places.back())].at = holding.at;
  its.places[static_cast<size_t>(holding.at)] = its.places.back();
  its.places.pop_back();
  if (its.places.empty()) let_holder_go(holding.holder);
  const size_t hole = heap_at_[static_cast<size_t>(place)];
  const Due last = soonest_.back();
  soonest_.pop_back();
  // The last one may come from another branch of the heap, and then belong above the hole as well
  // as below it: settle() tries both ways.
  if (hole < soonest_.size()) settle(hole, last);
  return std::move(entry.lease);
}

void Leases::renew(const WorkId& work, Time deadline) {
  Entry& entry = entry_of(work);
  entry.lease.deadline = deadline;
  const auto place = static_cast<size_t>(&entry - entries_.data());
  settle(heap_at_[place], {deadline, static_cast<int32_t>(place)});
}

void Leases::forget_turns(const WorkId& work) { entry_of(work).lease.turns = 0; }

const WorkId& Leases::next() const {
  TR_CHECK(!soonest_.empty(), "no lease is there");
  return entries_[static_cast<size_t>(soonest_.front().entry)].work;
}

std::vector<WorkId> Leases::of(const WorkerId& worker) const {
  std::vector<WorkId> found;
  const int32_t* holder = search_holder(worker);
  if (holder == nullptr) return found;
  const std::vector<int32_t>& places = held_[static_cast<size_t>(*holder)].places;
  found.reserve(places.size());
  for (const int32_t place : places) found.push_back(entries_[static_cast<size_t>(place)].work);
  // The order of the list depends on which leases ended before, and a state that was read back has
  // another one. Equal states must give equal actions (law 14.1).
  std::ranges::sort(found);
  return found;
}

bool Leases::holds_held_out(const WorkerId& worker) const {
  const int32_t* holder = search_holder(worker);
  return holder != nullptr && held_[static_cast<size_t>(*holder)].held_out > 0;
}

std::map<WorkId, Lease> Leases::in_order() const {
  std::map<WorkId, Lease> all;
  for (const Row& row : sorted()) all.emplace_hint(all.end(), row.work, *row.lease);
  return all;
}

bool Leases::consistent() const {
  if (heap_at_.size() != entries_.size() || soonest_.size() + free_.size() != entries_.size() ||
      places_.size() != soonest_.size() || !places_.consistent() || !holders_.consistent() ||
      holders_.size() + free_holders_.size() != held_.size())
    return false;
  size_t held_by_all = 0, holding = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Held& held = held_[i];
    if (held.places.empty()) continue;
    ++holding;
    const int32_t* holder = search_holder(held.worker);
    if (holder == nullptr || static_cast<size_t>(*holder) != i) return false;
    const auto in_evaluation = [&](int32_t place) {
      return entries_[static_cast<size_t>(place)].work.lane == Lane::kEval;
    };
    if (std::ranges::count_if(held.places, in_evaluation) != held.held_out) return false;
    held_by_all += held.places.size();
  }
  if (held_by_all != soonest_.size() || holding != holders_.size()) return false;
  // Each place is either free or in the heap, and once there.
  std::vector<bool> seen(entries_.size());
  const auto first_time = [&](int32_t entry) -> bool {
    if (entry < 0 || entry >= std::ssize(entries_) || seen[static_cast<size_t>(entry)])
      return false;
    return seen[static_cast<size_t>(entry)] = true;
  };
  const auto is_held = [&](int32_t place) {
    const Entry& entry = entries_[static_cast<size_t>(place)];
    const Holding& its = holdings_[static_cast<size_t>(place)];
    const Held& held = held_[static_cast<size_t>(its.holder)];
    return held.worker == entry.lease.worker && its.at < std::ssize(held.places) &&
           held.places[static_cast<size_t>(its.at)] == place;
  };
  if (!std::ranges::all_of(free_, first_time)) return false;
  for (size_t at = 0; at < soonest_.size(); ++at) {
    const Due& due = soonest_[at];
    if (!first_time(due.entry)) return false;
    const Entry& entry = entries_[static_cast<size_t>(due.entry)];
    const int32_t* place = search(entry.work);
    if (place == nullptr || *place != due.entry || entry.lease.deadline != due.deadline ||
        heap_at_[static_cast<size_t>(due.entry)] != at || !is_held(due.entry) ||
        (at > 0 && sooner(due, soonest_[(at - 1) / 2])))
      return false;
  }
  return true;
}

std::vector<Leases::Row> Leases::sorted() const {
  std::vector<Row> all;
  all.reserve(size());
  for (const Due& due : soonest_) {
    const Entry& entry = entries_[static_cast<size_t>(due.entry)];
    all.push_back({entry.work, &entry.lease});
  }
  std::ranges::sort(all, {}, &Row::work);
  return all;
}

std::vector<std::pair<Time, WorkId>> Leases::deadlines() const {
  std::vector<std::pair<Time, WorkId>> all;
  all.reserve(size());
  for (const Due& due : soonest_)
    all.emplace_back(due.deadline, entries_[static_cast<size_t>(due.entry)].work);
  std::ranges::sort(all);
  return all;
}

// Equal deadlines are told apart by the member and never by the place, which differs between equal
// states (law 14.1).
bool Leases::sooner(const Due& a, const Due& b) const {
  if (a.deadline != b.deadline) return a.deadline < b.deadline;
  return entries_[static_cast<size_t>(a.entry)].work < entries_[static_cast<size_t>(b.entry)].work;
}

void Leases::put(size_t at, const Due& due) {
  soonest_[at] = due;
  heap_at_[static_cast<size_t>(due.entry)] = at;
}

// Up or down from `at`, to where `due` belongs.
void Leases::settle(size_t at, const Due& due) {
  while (at > 0 && sooner(due, soonest_[(at - 1) / 2])) {
    put(at, soonest_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  for (size_t child = 2 * at + 1; child < soonest_.size(); child = 2 * at + 1) {
    if (child + 1 < soonest_.size() && sooner(soonest_[child + 1], soonest_[child])) ++child;
    if (!sooner(soonest_[child], due)) break;
    put(at, soonest_[child]);
    at = child;
  }
  put(at, due);
}

}  // namespace tailrace::scheduler
