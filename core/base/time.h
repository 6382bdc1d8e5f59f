// Points and spans of time as values. Who reads a clock: clock.h.
#pragma once

#include <chrono>

namespace tailrace {

// Monotone time since an arbitrary start.
using Time = std::chrono::nanoseconds;

constexpr double seconds_of(std::chrono::duration<double> time) { return time.count(); }

}  // namespace tailrace
