#include "sandbox/process/start_progress.h"

#include <chrono>

#include <gtest/gtest.h>

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

constexpr Time kNone = Time::max();

TEST(StartProgress, ASlowStartIsToldOfAndItsEndToo) {
  StartProgress progress;
  EXPECT_EQ(progress.look(109s, 100s, 2, 8), std::nullopt);
  EXPECT_EQ(progress.next(100s), Time(110s));
  EXPECT_EQ(progress.look(110s, 100s, 3, 8), "3 of 8 processes have started");
  EXPECT_EQ(progress.next(100s), Time(140s));
  EXPECT_EQ(progress.look(139s, 100s, 4, 8), std::nullopt);
  EXPECT_EQ(progress.look(141s, 100s, 5, 8), "5 of 8 processes have started");
  EXPECT_EQ(progress.look(142s, kNone, 8, 8), "8 of 8 processes have started");
  EXPECT_EQ(progress.look(143s, kNone, 8, 8), std::nullopt);
  EXPECT_EQ(progress.next(kNone), Time::max());
}

// However many follow one another, as of a program that plays one episode in each process.
TEST(StartProgress, FastStartsAreNotToldOf) {
  StartProgress progress;
  for (Time now = 100s; now < 1000s; now += 1s)
    EXPECT_EQ(progress.look(now, now - 2s, 7, 8), std::nullopt);
  EXPECT_EQ(progress.look(1000s, kNone, 8, 8), std::nullopt);
}

TEST(StartProgress, AnotherWaitIsToldOfAsTheFirst) {
  StartProgress progress;
  EXPECT_TRUE(progress.look(110s, 100s, 0, 1));
  EXPECT_TRUE(progress.look(111s, kNone, 1, 1));
  EXPECT_EQ(progress.look(121s, 112s, 1, 2), std::nullopt);
  EXPECT_TRUE(progress.look(122s, 112s, 1, 2));
}

}  // namespace
}  // namespace tailrace::sandbox
