// The leases of all members: the worker of each, and until when. Found by member in one step, by
// worker, and by deadline.
//
// They lie side by side in no order, so that an event touches few lines of memory; who goes through
// them gets them in order, for the price of a sort.
//
// Thread: caller locks.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/state/hash_table.h"

namespace tailrace::scheduler {

// A member in its lane. Evaluation sorts first: it is served first.
struct WorkId {
  Lane lane = Lane::kTrain;
  MemberId member;
  TR_FIELDS(WorkId, lane, member);
  friend std::strong_ordering operator<=>(const WorkId& a, const WorkId& b) {
    if (a.lane != b.lane)
      return a.lane == Lane::kEval ? std::strong_ordering::less : std::strong_ordering::greater;
    return a.member <=> b.member;
  }
};

uint32_t hash_of(const WorkId& work);

enum class LeaseKind : uint8_t { kGenerate, kVerify };

// The attempt that a lease took the place of: its worker stood still, and may have finished it by
// now (law 6.4). It stands outside of Lease because clang's std::optional needs its defaults there.
struct LeaseBefore {
  WorkerId worker;
  int32_t attempt = 0;
  TR_FIELDS(LeaseBefore, worker, attempt);
};

struct Lease {
  using Before = LeaseBefore;

  LeaseKind kind = LeaseKind::kGenerate;
  WorkerId worker;
  int32_t attempt = 0;
  int32_t verify_attempt = 0;
  Time deadline{};
  std::optional<Before> before = {};
  int32_t turns = 0;  // of the prefix that it began with
  TR_FIELDS(Lease, kind, worker, attempt, verify_attempt, deadline, before, turns);
};

class Leases {
 public:
  size_t size() const { return soonest_.size(); }
  bool empty() const { return soonest_.empty(); }

  // Null: it has none. Until the next change.
  const Lease* find(const WorkId& work) const;
  bool contains(const WorkId& work) const { return find(work) != nullptr; }
  const Lease& at(const WorkId& work) const;

  // A member has at most one.
  const Lease& add(const WorkId& work, Lease lease);
  Lease take(const WorkId& work);
  // Another deadline.
  void renew(const WorkId& work, Time deadline);
  // Whoever goes on with it begins without stored turns.
  void forget_turns(const WorkId& work);

  // The one whose deadline is next, and of equals the first member. There is one.
  const WorkId& next() const;
  Time next_deadline() const { return soonest_.front().deadline; }

  // The members that this worker works on, in order: no other lease is looked at.
  std::vector<WorkId> of(const WorkerId& worker) const;
  // One of these is in the evaluation lane. None is looked at.
  bool holds_held_out(const WorkerId& worker) const;

  // The members of those of which `is` holds, in order. All are looked at.
  template <class Is>
  std::vector<WorkId> where(const Is& is) const {
    std::vector<WorkId> found;
    for (const Due& due : soonest_) {
      const Entry& entry = entries_[static_cast<size_t>(due.entry)];
      if (is(entry.lease)) found.push_back(entry.work);
    }
    std::ranges::sort(found);
    return found;
  }

  // A copy of all.
  std::map<WorkId, Lease> in_order() const;

  // As two lists, in order: the leases, and their deadlines, which follow from them.
  template <class V>
  void fields(V& visit) {
    if constexpr (V::kReads) {
      std::map<WorkId, Lease> leases;
      std::set<std::pair<Time, WorkId>> deadlines;
      visit(leases, deadlines);
      *this = {};
      for (auto& [work, lease] : leases) add(work, std::move(lease));
      // Not what was written: whoever trusts it would wait for another moment.
      if (!std::ranges::equal(deadlines, this->deadlines())) visit.refuse();
    } else {
      visit(sorted(), deadlines());
    }
  }
  // For tests: each entry is free, or found under its member and its worker, and in the heap at its
  // deadline.
  bool consistent() const;
  friend bool operator==(const Leases& a, const Leases& b) { return a.in_order() == b.in_order(); }

 private:
  struct Entry {
    WorkId work;
    Lease lease;
  };
  struct Due {
    Time deadline{};
    int32_t entry = 0;
  };

  // As a map has it.
  struct Row {
    WorkId work;
    const Lease* lease = nullptr;
    template <class V>
    void fields(V& visit) {
      visit(work, *lease);
    }
  };

  const int32_t* search(const WorkId& work) const;
  Entry& entry_of(const WorkId& work);
  std::vector<Row> sorted() const;
  std::vector<std::pair<Time, WorkId>> deadlines() const;

  // The heap: soonest_[i] is no later than soonest_[2i+1] and soonest_[2i+2].
  bool sooner(const Due& a, const Due& b) const;
  void put(size_t at, const Due& due);
  void settle(size_t at, const Due& due);

  // Which of held_ has it, and where in its list: apart from the entries, since one that ends moves
  // another one there.
  struct Holding {
    int32_t holder = 0, at = 0;
  };

  std::vector<Entry> entries_;     // also free ones
  std::vector<Holding> holdings_;  // of these
  std::vector<int32_t> free_;      // of these
  std::vector<size_t> heap_at_;    // where soonest_ has each of them
  std::vector<Due> soonest_;
  HashTable<int32_t> places_;  // of members, in entries_
  // Leases of a worker, in no order; one that has none is free for another. Derived, so never
  // archived. What ends is found without its worker's name.
  struct Held {
    WorkerId worker;
    std::vector<int32_t> places;
    int64_t held_out = 0;  // of these, in the evaluation lane
  };
  const int32_t* search_holder(const WorkerId& worker) const;
  int32_t holder_of(const WorkerId& worker);
  void let_holder_go(int32_t holder);
  std::vector<Held> held_;
  std::vector<int32_t> free_holders_;
  HashTable<int32_t> holders_;  // of workers that hold some, in held_
};

}  // namespace tailrace::scheduler
