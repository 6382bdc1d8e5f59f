#include "core/run/stall_watch.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using namespace std::chrono_literals;

TEST(StallWatch, CountsOnlyTheTimeInWhichSomebodyLooked) {
  StallWatch watch(3s);
  EXPECT_FALSE(watch.look(1, 1s));
  EXPECT_FALSE(watch.look(1, 1s));
  EXPECT_FALSE(watch.look(1, 1h));  // the watcher was stopped
  EXPECT_TRUE(watch.look(1, 1s));
  EXPECT_FALSE(watch.look(2, 1s));  // it goes on
  EXPECT_EQ(watch.silent(), 0s);
  StallWatch never(0s);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(never.look(0, 1s));
}

TEST(StallWatch, WhatWasExcusedGetsItsTimeAnew) {
  StallWatch watch(2s);
  EXPECT_FALSE(watch.look(0, 1s));
  EXPECT_TRUE(watch.look(0, 1s));
  EXPECT_TRUE(watch.excuse());      // a word is due
  EXPECT_FALSE(watch.look(0, 1s));  // let go, it may need that long again
  EXPECT_TRUE(watch.look(0, 1s));
  EXPECT_FALSE(watch.excuse());  // still, or again: said already
  EXPECT_FALSE(watch.look(1, 1s));
  EXPECT_FALSE(watch.look(1, 1s));
  EXPECT_TRUE(watch.look(1, 1s));
  EXPECT_TRUE(watch.excuse());  // another time
}

}  // namespace
}  // namespace tailrace
