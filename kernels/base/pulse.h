// That work goes on: a counter which whoever works beats, and which a supervisor reads to tell a
// slow process from one that stands still.
//
// A thread beats the pulse that it was bound to. It is bound to the thread, and not passed down,
// because every loop that may take long would have to take it: ops, tensors, lines, records. It
// changes no result, and where nobody has bound one a beat does nothing.
//
// Thread: a Pulse any; beat() and PulseScope are about the calling thread.
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

// Binds the calling thread to `pulse`, which must outlive it, and at its end to the one before.
class PulseScope {
 public:
  explicit PulseScope(Pulse& pulse);
  ~PulseScope();
  PulseScope(const PulseScope&) = delete;

 private:
  Pulse* before_;
};

// A piece of work is done: an op, a block of a tensor, a line of a file, a turn of a loop. It means
// that the thread comes round, not that anybody has use for what it does: who waits for a message
// and looks again every now and then is well.
void beat();

}  // namespace tailrace
