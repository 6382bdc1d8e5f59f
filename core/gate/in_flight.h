// Bytes of a worker's session that were passed on to the scheduler and of which it has not said
// that they have arrived. An honest link keeps to its window (link.h), so more than a few windows
// are of a worker that does not, and would fill the queue before a scheduler that stands still.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "core/wire/link.h"

namespace tailrace {

class InFlight {
 public:
  static constexpr int64_t kMaxBytes = 4 * wire::kWindowBytes;

  // Whether a frame of so many bytes may go. One without a number (a heartbeat, a Hello) is small
  // and not acknowledged; one that is sent again is there already.
  bool has_room(uint64_t sequence, int64_t bytes) const {
    if (sequence == 0) return bytes <= kMaxUnnumbered;
    return is_counted(sequence) || bytes_ + bytes <= kMaxBytes;
  }
  // It went.
  void note_sent(uint64_t sequence, int64_t bytes) {
    if (sequence == 0 || is_counted(sequence)) return;
    frames_.emplace_back(sequence, bytes);
    bytes_ += bytes;
  }
  // All up to this one have arrived.
  void arrived(uint64_t sequence) {
    while (!frames_.empty() && frames_.front().first <= sequence) {
      bytes_ -= frames_.front().second;
      frames_.pop_front();
    }
  }
  // A session or a connection begins.
  void clear() {
    frames_.clear();
    bytes_ = 0;
  }

 private:
  bool is_counted(uint64_t sequence) const {
    return !frames_.empty() && sequence <= frames_.back().first;
  }

  static constexpr int64_t kMaxUnnumbered = 4096;

  std::deque<std::pair<uint64_t, int64_t>> frames_;
  int64_t bytes_ = 0;
};

}  // namespace tailrace
