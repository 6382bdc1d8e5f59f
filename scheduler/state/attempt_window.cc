#include "scheduler/state/attempt_window.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace tailrace::scheduler {
namespace {

// Numbers begin anew before they end.
constexpr int32_t kMostNumber = 1 << 30;

}  // namespace

// Leaves by_work_ to the callers, which have found the number there or know its hash.
void AttemptWindow::drop(int32_t number) {
  Mark& mark = marks_[place(number)];
  --size_;
  --ended_[static_cast<size_t>(mark.outcome)];
  mark.held = false;
  if (!counts_workers_) return;
  const int32_t place_of_tally = tally_[place(number)];
  Tally& tally = tallies_[static_cast<size_t>(place_of_tally)];
  count(tally, mark.outcome, -1);
  if (tally.all > 0) return;
  // Names come and go: the next new one takes the place.
  by_worker_.erase(hash_of(tally.worker), [&](int32_t at) { return at == place_of_tally; });
  free_.push_back(place_of_tally);
}

int32_t AttemptWindow::tally_of(const WorkerId& worker) {
  const uint32_t hash = hash_of(worker);
  const int32_t* known = by_worker_.find(
      hash, [&](int32_t at) { return tallies_[static_cast<size_t>(at)].worker == worker; });
  if (known != nullptr) return *known;
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(tallies_.size()));
    tallies_.emplace_back();
  }
  const int32_t at = free_.back();
  free_.pop_back();
  tallies_[static_cast<size_t>(at)].worker = worker;
  by_worker_.insert(hash, at);
  return at;
}

void AttemptWindow::count(Tally& tally, Outcome outcome, int32_t more) {
  // Each of its shares changes with the number of its attempts.
  count_above(tally, -1);
  tally.all += more;
  tally.ended[static_cast<size_t>(outcome)] += more;
  count_above(tally, 1);
}

void AttemptWindow::count_above(const Tally& tally, int64_t more) {
  for (size_t i = 0; i < tally.ended.size(); ++i)
    if (tally.ended[i] > 0 && exceeds(share_, tally.ended[i], tally.all)) above_[i] += more;
}

int64_t AttemptWindow::workers_above(Outcome outcome, double share) {
  if (!counts_workers_ || share != share_) count_workers(share);
  // add() looks at this outcome to see when counts by worker no longer pay.
  asked_ = outcome;
  return above_[static_cast<size_t>(outcome)];
}

void AttemptWindow::count_workers(double share) {
  forget_workers();
  share_ = share;
  counts_workers_ = true;
  tally_.resize(marks_.size());
  for (int32_t number = first_; number < next_; ++number)
    if (marks_[place(number)].held) count_worker(number);
}

void AttemptWindow::count_worker(int32_t number) {
  const int32_t tally = tally_of(attempts_[place(number)].worker);
  tally_[place(number)] = tally;
  count(tallies_[static_cast<size_t>(tally)], marks_[place(number)].outcome, 1);
}

void AttemptWindow::forget_workers() {
  counts_workers_ = false;
  tallies_.clear();
  tally_.clear();
  free_.clear();
  by_worker_ = {};
  above_ = {};
}

void AttemptWindow::add(Attempt attempt) {
  const uint32_t hash = hash_of(attempt.work);
  int32_t known = -1;
  // Law 7.6 judges by one answer of a member, its last: a member that is tried again and again
  // would else outweigh the others.
  if (by_work_.erase(hash, [&](int32_t number) {
        known = number;
        return attempts_[place(number)].work == attempt.work;
      }))
    drop(known);
  // Replaced attempts keep their places in the ring, so it may be full while few are held.
  if (next_ - first_ == std::ssize(marks_) || next_ == kMostNumber) pack();
  by_work_.insert(hash, next_);
  marks_[place(next_)] = {.hash = hash, .outcome = attempt.outcome, .held = true};
  ++size_;
  ++ended_[static_cast<size_t>(attempt.outcome)];
  attempts_[place(next_)] = std::move(attempt);
  if (counts_workers_) count_worker(next_);
  ++next_;
  // Half as many as make somebody ask: until then as many more have to fail as counting costs.
  if (counts_workers_ && !exceeds(share_ / 2, count(asked_), size_)) forget_workers();
}

void AttemptWindow::drop_oldest() {
  if (const Mark& mark = marks_[place(first_)]; mark.held) {
    by_work_.erase(mark.hash, [&](int32_t number) { return number == first_; });
    drop(first_);
  }
  ++first_;
}

void AttemptWindow::keep(int64_t most) {
  while (size_ > most) drop_oldest();
  while (first_ < next_ && !marks_[place(first_)].held) drop_oldest();
}

void AttemptWindow::pack() {
  // Counts by worker are not copied: tallies are named by places in the rings, which are others
  // here. add() makes them anew.
  AttemptWindow before = std::exchange(*this, {});
  counts_workers_ = before.counts_workers_;
  asked_ = before.asked_;
  share_ = before.share_;
  // Twice as many as there are, so that the next time is as many away.
  const size_t places = std::bit_ceil(2 * static_cast<size_t>(before.size_) + 16);
  attempts_.resize(places);
  marks_.resize(places);
  if (counts_workers_) tally_.resize(places);
  for (int32_t number = before.first_; number < before.next_; ++number)
    if (before.marks_[before.place(number)].held)
      add(std::move(before.attempts_[before.place(number)]));
}

bool AttemptWindow::consistent() const {
  if (!by_work_.consistent() || next_ - first_ > std::ssize(marks_)) return false;
  Counts ended{}, above{};
  int64_t held = 0;
  std::map<WorkerId, Tally> tallies;
  for (int32_t number = first_; number < next_; ++number) {
    const Mark& mark = marks_[place(number)];
    const Attempt& attempt = attempts_[place(number)];
    if (!mark.held) continue;
    ++held;
    ++ended[static_cast<size_t>(attempt.outcome)];
    if (counts_workers_ &&
        tallies_[static_cast<size_t>(tally_[place(number)])].worker != attempt.worker)
      return false;
    Tally& tally = tallies[attempt.worker];
    ++tally.all, ++tally.ended[static_cast<size_t>(attempt.outcome)];
    const int32_t* found =
        by_work_.find(hash_of(attempt.work), [&](int32_t other) { return other == number; });
    if (found == nullptr || mark.hash != hash_of(attempt.work) || mark.outcome != attempt.outcome)
      return false;
  }
  if (!counts_workers_) tallies.clear();
  for (const auto& [worker, tally] : tallies) {
    const int32_t* found = by_worker_.find(hash_of(worker), [&](int32_t at) {
      return tallies_[static_cast<size_t>(at)].worker == worker;
    });
    if (found == nullptr) return false;
    const Tally& kept = tallies_[static_cast<size_t>(*found)];
    if (kept.all != tally.all || kept.ended != tally.ended) return false;
    for (size_t i = 0; i < above.size(); ++i)
      above[i] += exceeds(share_, tally.ended[i], tally.all);
  }
  return held == size_ && ended == ended_ && above == above_ && by_worker_.consistent() &&
         by_worker_.size() == tallies.size() && tallies.size() + free_.size() == tallies_.size() &&
         static_cast<int64_t>(by_work_.size()) == held;
}

bool operator==(const AttemptWindow& a, const AttemptWindow& b) {
  if (a.size_ != b.size_) return false;
  // Numbers and places are no part of the value: two windows are equal when they hold the same
  // attempts in the same order, as a snapshot does.
  std::vector<const AttemptWindow::Attempt*> of_a;
  a.visit_all([&](const auto& attempt) { of_a.push_back(&attempt); });
  size_t at = 0;
  bool equal = true;
  b.visit_all([&](const auto& attempt) { equal = equal && *of_a[at++] == attempt; });
  return equal;
}

}  // namespace tailrace::scheduler
