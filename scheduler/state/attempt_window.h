// How the last attempts of a pool ended, of what and at whom; of a member its last one.
//
// What is added, replaced and counted costs the same however long it is: a run of 3,000 workers is
// judged by 12,000 attempts (law 7.6).
//
// Thread: caller locks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/ids.h"
#include "core/trajectory/outcome.h"
#include "scheduler/state/hash_table.h"
#include "scheduler/state/leases.h"

namespace tailrace::scheduler {

class AttemptWindow {
 public:
  struct Attempt {
    WorkerId worker;
    WorkId work;
    Outcome outcome = Outcome::kFinished;
    template <class V>
    void fields(V& visit) {
      visit(worker, work, outcome);
    }
    friend bool operator==(const Attempt&, const Attempt&) = default;
  };

  int64_t size() const { return size_; }
  // Of these, how many ended so.
  int64_t count(Outcome outcome) const { return ended_[static_cast<size_t>(outcome)]; }

  // The newest. One of the same work that is there goes.
  void add(Attempt attempt);
  // The oldest go, until no more than this many are left.
  void keep(int64_t most);

  // In their order.
  template <class Visit>
  void visit_all(const Visit& visit) const {
    for (int32_t number = first_; number < next_; ++number)
      if (marks_[place(number)].held) visit(attempts_[place(number)]);
  }

  // As a list. What is read in follows the same rule: no work is there twice.
  template <class V>
  void fields(V& visit) {
    std::deque<Attempt> all;
    if constexpr (V::kReads) {
      visit(all);
      *this = {};
      for (Attempt& attempt : all) add(std::move(attempt));
    } else {
      visit_all([&](const Attempt& attempt) { all.push_back(attempt); });
      visit(all);
    }
  }
  // For tests: each is found under its work, and what is counted is there.
  bool consistent() const;
  friend bool operator==(const AttemptWindow& a, const AttemptWindow& b);

 private:
  // What of an attempt is asked when it goes, apart from the rest of it: the oldest has left the
  // caches long ago. One that was replaced is not held, and leaves its place when it is the oldest,
  // or when the ring is full.
  struct Mark {
    uint32_t hash = 0;  // of its work
    Outcome outcome = Outcome::kFinished;
    bool held = false;
  };

  size_t place(int32_t number) const { return static_cast<size_t>(number) & (marks_.size() - 1); }
  void drop(Mark& mark);
  void drop_oldest();
  // Anew, without those that are not held, and with room for as many again.
  void pack();

  // Attempts have numbers, from first_ to next_, and the place that their number gives them in two
  // rings, whose size is a power of two.
  std::vector<Attempt> attempts_;
  std::vector<Mark> marks_;
  int32_t first_ = 0, next_ = 0;
  int64_t size_ = 0;
  std::array<int64_t, kEnumNames<Outcome>.size()> ended_{};
  HashTable<int32_t> by_work_;  // numbers
};

}  // namespace tailrace::scheduler
