// A bounded first-in, first-out queue between threads: the inbox of an actor.
//
// Close: producers are turned away at once; what is inside stays and consumers drain it, after
// which pop returns nothing.
//
// Thread: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/mutex.h"

namespace tailrace {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { TR_CHECK(capacity >= 1); }
  BoundedQueue(const BoundedQueue&) = delete;

  // Waits while the queue is full, which is how a slow consumer slows its producers, but no longer
  // than this. False when still full, or closed; `item` is moved from only on success.
  [[nodiscard]] bool push_for(T& item, std::chrono::nanoseconds timeout) {
    MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (items_.size() >= capacity_ && !closed_) {
      if (not_full_.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
    }
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    not_empty_.notify_one();
    return true;
  }

  // Waits for an item. Nothing: closed and drained.
  [[nodiscard]] std::optional<T> pop() {
    MutexLock lock(mu_);
    while (items_.empty() && !closed_) not_empty_.wait(lock.native());
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.notify_one();
    return item;
  }

  void close() {
    MutexLock lock(mu_);
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }

 private:
  const size_t capacity_;
  Mutex mu_;
  std::condition_variable not_full_, not_empty_;
  std::deque<T> items_ TR_GUARDED_BY(mu_);
  bool closed_ TR_GUARDED_BY(mu_) = false;
};

}  // namespace tailrace
