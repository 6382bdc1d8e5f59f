#include "scheduler/state/attempt_window.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tailrace::scheduler {
namespace {

// Numbers begin anew before they end.
constexpr int32_t kMostNumber = 1 << 30;

}  // namespace

void AttemptWindow::drop(Mark& mark) {
  --size_;
  --ended_[static_cast<size_t>(mark.outcome)];
  mark.held = false;
}

void AttemptWindow::add(Attempt attempt) {
  const uint32_t hash = hash_of(attempt.work);
  int32_t known = -1;
  if (by_work_.erase(hash, [&](int32_t number) {
        known = number;
        return attempts_[place(number)].work == attempt.work;
      }))
    drop(marks_[place(known)]);
  if (next_ - first_ == std::ssize(marks_) || next_ == kMostNumber) pack();
  by_work_.insert(hash, next_);
  marks_[place(next_)] = {.hash = hash, .outcome = attempt.outcome, .held = true};
  ++size_;
  ++ended_[static_cast<size_t>(attempt.outcome)];
  attempts_[place(next_)] = std::move(attempt);
  ++next_;
}

void AttemptWindow::drop_oldest() {
  Mark& mark = marks_[place(first_)];
  if (mark.held) {
    by_work_.erase(mark.hash, [&](int32_t number) { return number == first_; });
    drop(mark);
  }
  ++first_;
}

void AttemptWindow::keep(int64_t most) {
  while (size_ > most) drop_oldest();
  while (first_ < next_ && !marks_[place(first_)].held) drop_oldest();
}

void AttemptWindow::pack() {
  AttemptWindow before = std::exchange(*this, {});
  // Twice as many as there are, so that the next time is as many away.
  const size_t places = std::bit_ceil(2 * static_cast<size_t>(before.size_) + 16);
  attempts_.resize(places);
  marks_.resize(places);
  for (int32_t number = before.first_; number < before.next_; ++number)
    if (before.marks_[before.place(number)].held)
      add(std::move(before.attempts_[before.place(number)]));
}

bool AttemptWindow::consistent() const {
  if (!by_work_.consistent() || next_ - first_ > std::ssize(marks_)) return false;
  std::array<int64_t, kEnumNames<Outcome>.size()> ended{};
  int64_t held = 0;
  for (int32_t number = first_; number < next_; ++number) {
    const Mark& mark = marks_[place(number)];
    const Attempt& attempt = attempts_[place(number)];
    if (!mark.held) continue;
    ++held;
    ++ended[static_cast<size_t>(attempt.outcome)];
    const int32_t* found =
        by_work_.find(hash_of(attempt.work), [&](int32_t other) { return other == number; });
    if (found == nullptr || mark.hash != hash_of(attempt.work) || mark.outcome != attempt.outcome)
      return false;
  }
  return held == size_ && ended == ended_ && static_cast<int64_t>(by_work_.size()) == held;
}

bool operator==(const AttemptWindow& a, const AttemptWindow& b) {
  if (a.size_ != b.size_) return false;
  std::vector<const AttemptWindow::Attempt*> of_a;
  a.visit_all([&](const auto& attempt) { of_a.push_back(&attempt); });
  size_t at = 0;
  bool equal = true;
  b.visit_all([&](const auto& attempt) { equal = equal && *of_a[at++] == attempt; });
  return equal;
}

}  // namespace tailrace::scheduler
