// A fixed team of threads for data-parallel loops.
//
// Results never depend on the size of the team: ops split their *outputs* among threads and keep
// the order of each sum (design rule 3).
//
// Thread: one caller at a time (a pool belongs to one actor).
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/base/device.h"

namespace tailrace {

// A borrowed callable body(begin, end): any lambda converts to it. Unlike std::function it never
// allocates, however much the lambda captures. It must not outlive the call that it is passed to.
class RangeBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeBody>)
      RangeBody(const F& body)  // NOLINT(google-explicit-constructor)
      : object_(&body), call_([](const void* object, int64_t begin, int64_t end) {
          (*static_cast<const F*>(object))(begin, end);
        }) {}

  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t);
};

class ThreadPool {
 public:
  // `num_threads` >= 1 counts the caller: 1 starts no thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) on disjoint ranges that cover [0, count); returns when all are done.
  // Range i of num_threads() is [count * i / n, count * (i + 1) / n); a thread that has finished
  // takes the next range that nobody has begun. Idle threads spin for a few microseconds and then
  // sleep. `body` must not throw and must not call the pool; its beats are beats of the caller's
  // pulse (pulse.h).
  void run(int64_t count, RangeBody body);

  // Loops so far that were divided. A test of "the same bits for every number of threads" proves
  // something only where it grows.
  int64_t num_divided() const { return num_divided_; }

 private:
  int64_t num_divided_ = 0;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The threads that an op on this stream is divided among: 1 without a pool.
int num_threads(const Stream& stream);

// Splits [0, count) among the stream's threads in pieces of at least `grain`; runs inline when the
// stream has no pool or there is only one piece.
void parallel_for(const Stream& stream, int64_t count, int64_t grain, RangeBody body);

}  // namespace tailrace
