// Time comes from a Clock&, so that a test decides what time it is.
#pragma once

#include <chrono>

#include "core/base/time.h"

namespace tailrace {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

inline Time steady_now() { return SteadyClock().now(); }
// Seconds since 1970, for what a person or another program reads.
inline double unix_seconds() {
  return seconds_of(std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace tailrace
