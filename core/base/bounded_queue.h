// A bounded first-in, first-out queue between threads: the inbox of an actor. Items may have a
// weight (bytes), whose sum is bounded too; what alone is heavier than the bound waits for an empty
// queue.
//
// Close: producers are turned away at once; what is inside stays and consumers drain it, after
// which pop returns nothing.
//
// Thread: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/mutex.h"

namespace tailrace {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity, int64_t max_weight = std::numeric_limits<int64_t>::max())
      : capacity_(capacity), max_weight_(max_weight) {
    TR_CHECK(capacity >= 1);
  }
  BoundedQueue(const BoundedQueue&) = delete;

  // Waits while the queue is full, which is how a slow consumer slows its producers, but no longer
  // than this. False when still full, or closed; `item` is moved from only on success.
  [[nodiscard]] bool push_for(T& item, std::chrono::nanoseconds timeout, int64_t weight = 0) {
    TR_CHECK(weight >= 0);
    MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!fits(weight) && !closed_) {
      if (not_full_.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
    }
    if (closed_ || !fits(weight)) return false;
    items_.push_back({std::move(item), weight});
    weight_ += weight;
    not_empty_.notify_one();
    return true;
  }

  // Waits for an item. Nothing: closed and drained.
  [[nodiscard]] std::optional<T> pop() {
    MutexLock lock(mu_);
    while (items_.empty() && !closed_) not_empty_.wait(lock.native());
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front().value));
    weight_ -= items_.front().weight;
    items_.pop_front();
    // To all: what goes may make room for a light one only, or for several.
    not_full_.notify_all();
    return item;
  }

  void close() {
    MutexLock lock(mu_);
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }

 private:
  struct Item {
    T value;
    int64_t weight;
  };
  bool fits(int64_t weight) const TR_REQUIRES(mu_) {
    // Subtracted, not added: the bound may be the largest number.
    return items_.empty() || (items_.size() < capacity_ && weight <= max_weight_ - weight_);
  }

  const size_t capacity_;
  const int64_t max_weight_;
  Mutex mu_;
  std::condition_variable not_full_, not_empty_;
  std::deque<Item> items_ TR_GUARDED_BY(mu_);
  int64_t weight_ TR_GUARDED_BY(mu_) = 0;
  bool closed_ TR_GUARDED_BY(mu_) = false;
};

}  // namespace tailrace
