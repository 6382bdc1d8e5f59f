#include "kernels/base/pulse.h"

#include <thread>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"

namespace tailrace {
namespace {

TEST(Pulse, BeatsTheOneThatTheThreadIsBoundTo) {
  beat();  // nobody's
  Pulse outer, inner;
  const PulseScope scope(outer);
  beat();
  {
    const PulseScope nested(inner);
    beat();
    beat();
    std::jthread([] { beat(); }).join();  // another thread: bound to nothing
  }
  beat();
  EXPECT_EQ(outer.beats(), 2u);
  EXPECT_EQ(inner.beats(), 2u);
}

TEST(Pulse, EveryLoopOfAnOpIsAPieceOfWork) {
  Pulse pulse;
  const PulseScope scope(pulse);
  ThreadPool pool(2);
  const auto nothing = [](int64_t, int64_t) {};
  parallel_for({.device = {}, .pool = &pool, .native = nullptr}, 100, 1, nothing);    // divided
  parallel_for({.device = {}, .pool = nullptr, .native = nullptr}, 100, 1, nothing);  // inline
  EXPECT_EQ(pulse.beats(), 2u);
}

}  // namespace
}  // namespace tailrace
