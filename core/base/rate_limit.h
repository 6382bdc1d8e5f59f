// Allows so many at once, and from then on one in each period. Bounds the traces (log lines,
// journal entries) of something that anybody may cause as often as they like.
//
// Thread: one at a time.
#pragma once

#include <algorithm>

#include "core/base/time.h"

namespace tailrace {

class RateLimit {
 public:
  RateLimit(int64_t at_once, Time period) : at_once_(at_once), period_(period) {}

  // Whether one more is within the limit; it then counts.
  [[nodiscard]] bool take(Time now) {
    // When all that was taken is forgotten: one number holds the whole past.
    const Time begin = std::max(forgotten_, now);
    if (begin - now > (at_once_ - 1) * period_) return false;
    forgotten_ = begin + period_;
    return true;
  }

 private:
  int64_t at_once_;
  Time period_;
  Time forgotten_ = Time::min();
};

}  // namespace tailrace
