// Tells when a process, or a thread, makes no progress: its pulse (kernels/base/pulse.h) has not
// beaten for longer than it may take.
//
// The time is that in which somebody looked and nothing excused it: while the watcher itself was
// stopped, nobody knows what the others did; and what a debugger has let go gets its time anew.
//
// Thread: caller locks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tailrace {

class StallWatch {
 public:
  // 0: it never stalls.
  explicit StallWatch(std::chrono::milliseconds patience) : patience_(patience) {}

  // Takes the beats seen now, `elapsed` after the last look. True: the watched work stands still.
  bool look(uint64_t beats, std::chrono::milliseconds elapsed) {
    if (beats != beats_) {
      *this = StallWatch(patience_);
      beats_ = beats;
      return false;
    }
    silent_ += std::min(elapsed, kLongestLook);
    return patience_.count() > 0 && silent_ >= patience_;
  }
  std::chrono::milliseconds silent() const { return silent_; }

  // It stands still and cannot help it. True the first time in a row: a word is due.
  bool excuse() {
    silent_ = std::chrono::milliseconds(0);
    return !std::exchange(excused_, true);
  }

 private:
  // A watcher that looks later than that was not there in between.
  static constexpr std::chrono::milliseconds kLongestLook{1'000};

  std::chrono::milliseconds patience_;
  std::chrono::milliseconds silent_{0};
  uint64_t beats_ = 0;
  bool excused_ = false;
};

}  // namespace tailrace
