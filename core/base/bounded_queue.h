// A bounded first-in, first-out queue between threads: the inbox of an actor.
//
// Close: producers are turned away at once (push returns false and drops its item); what is inside
// stays and consumers drain it, after which pop returns nothing.
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

  // Waits while the queue is full, which is how a slow consumer slows its producers. False when
  // closed.
  [[nodiscard]] bool push(T item) {
    MutexLock lock(mu_);
    while (items_.size() >= capacity_ && !closed_) not_full_.wait(lock.native());
    return add(std::move(item));
  }

  // Waits while the queue is full, but no longer than this. False when full or closed; `item` is
  // moved from only on success.
  [[nodiscard]] bool push_for(T& item, std::chrono::nanoseconds timeout) {
    MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (items_.size() >= capacity_ && !closed_) {
      if (not_full_.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
    }
    return items_.size() < capacity_ && add(std::move(item));
  }

  // Never waits. False when full or closed; `item` is moved from only on success.
  [[nodiscard]] bool try_push(T& item) {
    MutexLock lock(mu_);
    return items_.size() < capacity_ && add(std::move(item));
  }

  // Waits for an item. Nothing: closed and drained.
  [[nodiscard]] std::optional<T> pop() {
    MutexLock lock(mu_);
    while (items_.empty() && !closed_) not_empty_.wait(lock.native());
    return take();
  }

  // Nothing: the time is up, or closed and drained (see drained()).
  [[nodiscard]] std::optional<T> pop_for(std::chrono::nanoseconds timeout) {
    MutexLock lock(mu_);
    auto deadline = std::chrono::steady_clock::now() + timeout;
    while (items_.empty() && !closed_) {
      if (not_empty_.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
    }
    return take();
  }

  [[nodiscard]] std::optional<T> try_pop() {
    MutexLock lock(mu_);
    return take();
  }

  void close() {
    MutexLock lock(mu_);
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  bool closed() const {
    MutexLock lock(mu_);
    return closed_;
  }
  bool drained() const {
    MutexLock lock(mu_);
    return closed_ && items_.empty();
  }
  size_t size() const {
    MutexLock lock(mu_);
    return items_.size();
  }

 private:
  bool add(T&& item) TR_REQUIRES(mu_) {
    if (closed_) return false;
    items_.push_back(std::move(item));
    not_empty_.notify_one();
    return true;
  }

  std::optional<T> take() TR_REQUIRES(mu_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mu_;
  std::condition_variable not_full_, not_empty_;
  std::deque<T> items_ TR_GUARDED_BY(mu_);
  bool closed_ TR_GUARDED_BY(mu_) = false;
};

}  // namespace tailrace
