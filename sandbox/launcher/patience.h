// Until when an isolated process is waited for, by what has become of it: it is set up, its program
// runs, it ends. Each has a time of its own and comes once: who is killed again has no more time.
//
// Thread: one.
#pragma once

#include <chrono>

#include "core/base/time.h"

namespace tailrace::sandbox {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  // For what is no work of the program: to set its room up, and to take it away again.
  static constexpr Time kSetUp = std::chrono::seconds(30), kEnd = std::chrono::seconds(10);

  // `wall`: of the program.
  Patience(Time wall, Clock::time_point now) : wall_(wall), until_(now + kSetUp) {}

  void begin(Clock::time_point now) {
    if (has_begun_ || is_ending_) return;
    has_begun_ = true;
    until_ = now + wall_;
  }
  // Its program has ended, or it was killed.
  void end(Clock::time_point now) {
    if (is_ending_) return;
    is_ending_ = true;
    until_ = now + kEnd;
  }

  Clock::time_point until() const { return until_; }
  bool is_ending() const { return is_ending_; }

 private:
  const Time wall_;
  Clock::time_point until_;
  bool has_begun_ = false, is_ending_ = false;
};

}  // namespace tailrace::sandbox
