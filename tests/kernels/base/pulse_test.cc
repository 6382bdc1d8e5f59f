#include "kernels/base/pulse.h"

#include <latch>
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

TEST(Pulse, ThreadsOfAPoolBeatThatOfTheirCaller) {
  ThreadPool pool(3);
  // Each part waits for the others, so that each thread has one.
  const auto beat_in_all = [&pool] {
    std::latch all(3);
    pool.run(3, [&](int64_t, int64_t) {
      all.arrive_and_wait();
      beat();
    });
  };
  Pulse first, second;
  {
    const PulseScope scope(first);
    beat_in_all();
  }
  {
    const PulseScope scope(second);
    beat_in_all();
    beat_in_all();
  }
  beat_in_all();  // nobody's
  EXPECT_EQ(first.beats(), 3u);
  EXPECT_EQ(second.beats(), 6u);
}

TEST(Pulse, OfWorkBeatsOnceForSoMuchAndForWhatIsMore) {
  Pulse pulse;
  const PulseScope scope(pulse);
  WorkPulse work;
  const auto rounds = [&](int count, int64_t multiply_adds) {
    const uint64_t before = pulse.beats();
    for (int i = 0; i < count; ++i) work.add(multiply_adds);
    return pulse.beats() - before;
  };
  EXPECT_EQ(rounds(99, WorkPulse::kWork / 100), 0u);
  EXPECT_EQ(rounds(902, WorkPulse::kWork / 100 + 1), 10u);
  EXPECT_EQ(rounds(7, 3 * WorkPulse::kWork), 7u);
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
