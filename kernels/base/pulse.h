// A sign that work goes on: a counter which whoever works beats, and which a supervisor reads to
// tell a slow process from one that stands still.
//
// A thread beats the pulse that it was bound to. It is bound to the thread, and not passed down,
// because every loop that may take long would have to take it: ops, tensors, lines, records. It
// changes no result, and where nobody has bound one a beat does nothing. The threads of a pool are
// bound to the pulse of who calls it, for the call.
//
// Thread: a Pulse any; the rest is about the calling thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tailrace {

class Pulse {
 public:
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  // It may lie in memory that two processes share.
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  std::atomic<uint64_t> beats_{0};
};

// The pulse that the calling thread is bound to; null: none.
Pulse* bound_pulse();

// Binds the calling thread to `pulse` (null: to nothing), which must outlive it, and at its end to
// the one before.
class PulseScope {
 public:
  explicit PulseScope(Pulse* pulse);
  explicit PulseScope(Pulse& pulse) : PulseScope(&pulse) {}
  ~PulseScope();
  PulseScope(const PulseScope&) = delete;

 private:
  Pulse* before_;
};

// A piece of work is done: a block of a tensor, a line of a file, a turn of a loop. It means that
// the thread comes round, not that anybody has use for what it does: who waits for a message and
// looks again every now and then is well.
//
// A beat is an atomic addition, to one cache line for all threads of a pool: nothing for an
// innermost loop.
void beat();

// Beats for the loops of an op, whose rounds are as long as its shapes make them: once for so much
// work, and for each round that is more. So the longest silence of a thread is that much and a
// round, whatever the shapes are. An op begins with a beat (parallel_for); one that does a fixed
// number of operations a byte needs no more, because a pass over memory is short.
class WorkPulse {
 public:
  // Multiply-adds: a tenth of a millisecond at the highest rate of a core, some ten without
  // vectors.
  static constexpr int64_t kWork = int64_t{1} << 24;

  void add(int64_t multiply_adds) {
    work_ += multiply_adds;
    if (work_ < kWork) return;
    work_ = 0;
    beat();
  }

 private:
  int64_t work_ = 0;  // since it beat last
};

}  // namespace tailrace
