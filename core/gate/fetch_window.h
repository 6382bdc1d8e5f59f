// How many chunks may be on their way: as many as come back in about a second, so that a fast link
// is full and a slow one is not queued up, and no more than a limit of bytes.
//
// Thread: one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "core/base/time.h"

namespace tailrace {

class FetchWindow {
 public:
  FetchWindow(int64_t max_bytes, int64_t chunk_bytes)
      : most_(std::max<int64_t>(kLeast, max_bytes / chunk_bytes)),
        chunks_(std::min<int64_t>(kFirst, most_)) {}

  int64_t chunks() const { return chunks_; }

  // One has come, so long after it was asked for.
  void on_chunk(Time latency) {
    if (latency < kShort) chunks_ = std::min(chunks_ + 1, most_);
    if (latency > kLong) chunks_ = std::max(chunks_ - 1, kLeast);
  }

 private:
  static constexpr int64_t kLeast = 2, kFirst = 8;
  static constexpr Time kShort = std::chrono::seconds(1), kLong = std::chrono::seconds(2);

  int64_t most_, chunks_;
};

}  // namespace tailrace
