// Whether a rollout worker gets on, as a number that is another one whenever it does: what its
// heartbeats say (wire::Heartbeat::progress).
//
// It gets on when its loop comes round and the engine has computed something or has nothing to do:
// a worker that waits for its environments, or for work, is well, and one whose engine has work and
// computes none of it is not. Inside of a turn it gets on with each beat of its pulse, because one
// pass over a long prompt may take longer than anybody should wait for a sign of it.
//
// Thread: value() and held() any; the rest the worker's.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/pulse.h"

namespace tailrace {

class ProgressMeter {
 public:
  // Borrows the pulse that the worker's thread beats; null: turns alone are seen.
  explicit ProgressMeter(const Pulse* pulse) : pulse_(pulse) {}

  // Behind the beat of the loop itself, which says nothing of the engine. `tokens`: that the engine
  // has computed so far, of prompts and answers. `idle`: it has nothing to compute.
  void turn(int64_t tokens, bool idle) {
    if (idle || tokens != tokens_) turns_.fetch_add(1, std::memory_order_relaxed);
    tokens_ = tokens;
    turn_begun_.store(beats(), std::memory_order_relaxed);
  }

  // The call that holds the agents up; empty: nothing does.
  void hold(std::string held) {
    MutexLock lock(mutex_);
    held_ = std::move(held);
  }
  // Thread: any.
  std::string held() const {
    MutexLock lock(mutex_);
    return held_;
  }

  // Never 0.
  uint64_t value() const {
    const uint64_t in_turn = beats() - turn_begun_.load(std::memory_order_relaxed);
    // Beats of one turn: what is above, and beyond any turn, is cut.
    return (turns_.load(std::memory_order_relaxed) << kBits) | (in_turn & ((1 << kBits) - 1));
  }

 private:
  static constexpr int kBits = 24;
  uint64_t beats() const { return pulse_ == nullptr ? 0 : pulse_->beats(); }

  const Pulse* pulse_;
  int64_t tokens_ = 0;
  std::atomic<uint64_t> turns_{1}, turn_begun_{0};
  mutable Mutex mutex_;
  std::string held_ TR_GUARDED_BY(mutex_);
};

}  // namespace tailrace
