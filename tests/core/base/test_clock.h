// A clock that moves only when it is told to; any thread may read it.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/clock.h"

namespace tailrace {

class TestClock final : public Clock {
 public:
  Time now() const override { return Time(nanoseconds_.load()); }
  void advance(Time by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<int64_t> nanoseconds_{1};
};

}  // namespace tailrace
