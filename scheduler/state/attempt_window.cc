#include "scheduler/state/attempt_window.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tailrace::scheduler {
namespace {

// Numbers begin anew before they end.
constexpr int32_t kMostNumber = 1 << 30;

}  // namespace

void AttemptWindow::drop(Slot& slot) {
  --size_;
  --ended_[static_cast<size_t>(slot.attempt.outcome)];
  slot.held = false;
}

void AttemptWindow::add(Attempt attempt) {
  const uint32_t hash = hash_of(attempt.work);
  int32_t known = -1;
  if (by_work_.erase(hash, [&](int32_t number) {
        known = number;
        return slots_[static_cast<size_t>(number - first_)].attempt.work == attempt.work;
      }))
    drop(slots_[static_cast<size_t>(known - first_)]);
  by_work_.insert(hash, first_ + static_cast<int32_t>(std::ssize(slots_)));
  ++size_;
  ++ended_[static_cast<size_t>(attempt.outcome)];
  slots_.push_back({std::move(attempt), true});
  // Attempts that are tried again and again would fill it with what nobody looks at.
  if (std::ssize(slots_) > 2 * size_ + 64 || first_ > kMostNumber) pack();
}

void AttemptWindow::drop_oldest() {
  Slot& slot = slots_.front();
  if (slot.held) {
    by_work_.erase(hash_of(slot.attempt.work), [&](int32_t number) { return number == first_; });
    drop(slot);
  }
  slots_.pop_front();
  ++first_;
}

void AttemptWindow::keep(int64_t most) {
  while (size_ > most) drop_oldest();
  while (!slots_.empty() && !slots_.front().held) drop_oldest();
}

void AttemptWindow::pack() {
  std::deque<Slot> before = std::exchange(slots_, {});
  *this = {};
  for (Slot& slot : before)
    if (slot.held) add(std::move(slot.attempt));
}

bool AttemptWindow::consistent() const {
  if (!by_work_.consistent() || std::ssize(slots_) < size_) return false;
  std::array<int64_t, kEnumNames<Outcome>.size()> ended{};
  int64_t held = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].held) continue;
    ++held;
    ++ended[static_cast<size_t>(slots_[i].attempt.outcome)];
    const int32_t number = first_ + static_cast<int32_t>(i);
    if (by_work_.find(hash_of(slots_[i].attempt.work),
                      [&](int32_t other) { return other == number; }) == nullptr)
      return false;
  }
  return held == size_ && ended == ended_ && std::ssize(slots_) >= held &&
         static_cast<int64_t>(by_work_.size()) == held;
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
