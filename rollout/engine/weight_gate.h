// Which weights may sample, and when: the state machine of design section 6.
//
//   open -> closed -> frozen -> installing -> verified -> open
//
// A new engine is frozen: it has no weights, and a worker that has not proved its digest does not
// sample. Who installs has verified the digest of the bytes before they were packed.
//
// Thread: the decode engine's thread only.
#pragma once

#include <cstdint>

#include "kernels/base/check.h"

namespace tailrace {

class WeightGate {
 public:
  enum class State : uint8_t {
    kOpen,        // requests are admitted, tokens are sampled
    kClosed,      // what runs goes on; queued requests wait
    kFrozen,      // no forward pass
    kInstalling,  // weights change; KV of the old ones is gone
    kVerified,    // new weights are in place; waits for open
  };

  State state() const { return state_; }
  int64_t version() const { return version_; }  // -1: none yet
  bool may_admit() const { return state_ == State::kOpen; }
  bool may_step() const { return state_ == State::kOpen || state_ == State::kClosed; }

  void close() { move(State::kOpen, State::kClosed); }
  void freeze() { move(State::kClosed, State::kFrozen); }
  void begin_install() { move(State::kFrozen, State::kInstalling); }
  void verified(int64_t version) {
    move(State::kInstalling, State::kVerified);
    version_ = version;
  }
  void open() { move(State::kVerified, State::kOpen); }

 private:
  void move(State from, State to) {
    TR_CHECK(state_ == from, "gate in state {}, expected {}", static_cast<int>(state_),
             static_cast<int>(from));
    state_ = to;
  }

  State state_ = State::kFrozen;
  int64_t version_ = -1;
};

}  // namespace tailrace
