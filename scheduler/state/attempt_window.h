// How the last attempts of a pool ended, of what and at whom; of a member its last one.
//
// What is added, replaced and counted costs the same however long it is: a run of 3,000 workers is
// judged by 12,000 attempts (law 7.6). How many workers have attempts that mostly end alike is
// counted from the first question on, and kept with each attempt that comes or goes, until few end
// so: a run without failures pays nothing for it.
//
// Thread: caller locks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/fields.h"
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
    TR_FIELDS(Attempt, worker, work, outcome);
  };

  int64_t size() const { return size_; }
  // The number of these attempts that ended so.
  int64_t count(Outcome outcome) const { return ended_[static_cast<size_t>(outcome)]; }

  // Workers that have more than the share of their attempts ended so. The first call, and one with
  // another share, counts all attempts.
  int64_t workers_above(Outcome outcome, double share);
  static bool exceeds(double share, int64_t some, int64_t all) {
    return static_cast<double>(some) > share * static_cast<double>(all);
  }

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

  // Each worker with an attempt here, in no order; behind workers_above().
  template <class Visit>
  void visit_workers(const Visit& visit) const {
    for (const Tally& tally : tallies_)
      if (tally.all > 0) visit(tally.worker);
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
  // The part of an attempt that is asked when it goes, apart from the rest: the oldest has left the
  // caches long ago. One that was replaced is not held, and leaves its place when it is the oldest,
  // or when the ring is full.
  struct Mark {
    uint32_t hash = 0;  // of its work
    Outcome outcome = Outcome::kFinished;
    bool held = false;
  };

  using Counts = std::array<int64_t, kEnumNames<Outcome>.size()>;
  // How the attempts of one worker ended. Without attempts its place is free.
  struct Tally {
    WorkerId worker;
    int32_t all = 0;
    std::array<int32_t, kEnumNames<Outcome>.size()> ended{};
  };

  size_t place(int32_t number) const { return static_cast<size_t>(number) & (marks_.size() - 1); }
  void drop(int32_t number);
  int32_t tally_of(const WorkerId& worker);
  void count(Tally& tally, Outcome outcome, int32_t more);
  void count_above(const Tally& tally, int64_t more);
  void count_workers(double share);
  void count_worker(int32_t number);
  void forget_workers();
  void drop_oldest();
  // Anew, without those that are not held, and with room for as many again.
  void pack();

  // Attempts have numbers, from first_ to next_, and the place that their number gives them in two
  // rings, whose size is a power of two.
  std::vector<Attempt> attempts_;
  std::vector<Mark> marks_;
  int32_t first_ = 0, next_ = 0;
  int64_t size_ = 0;
  Counts ended_{};
  HashTable<int32_t> by_work_;  // numbers
  // For workers_above(); not archived.
  bool counts_workers_ = false;
  Outcome asked_ = Outcome::kFinished;
  double share_ = 1;
  std::vector<Tally> tallies_;
  std::vector<int32_t> tally_;    // a third ring: of the attempt's worker
  std::vector<int32_t> free_;     // places in tallies_
  HashTable<int32_t> by_worker_;  // the others
  Counts above_{};                // workers
};

}  // namespace tailrace::scheduler
