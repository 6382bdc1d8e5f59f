#include "rollout/worker/progress_meter.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(ProgressMeter, MovesWithTokensAndWhereThereIsNothingToCompute) {
  ProgressMeter meter(nullptr);
  EXPECT_NE(meter.value(), 0u);
  uint64_t last = meter.value();
  const auto moved = [&] { return std::exchange(last, meter.value()) != last; };
  meter.turn(5, /*idle=*/false);
  EXPECT_TRUE(moved());
  meter.turn(5, /*idle=*/false);
  meter.turn(5, /*idle=*/false);
  EXPECT_FALSE(moved()) << "it comes round, and its engine computes nothing";
  meter.turn(6, /*idle=*/false);
  EXPECT_TRUE(moved());
  meter.turn(6, /*idle=*/true);
  EXPECT_TRUE(moved());
  meter.turn(6, /*idle=*/true);
  EXPECT_TRUE(moved()) << "its environments work";
}

TEST(ProgressMeter, MovesWithThePulseInsideOfATurnAlone) {
  Pulse pulse;
  ProgressMeter meter(&pulse);
  pulse.beat();
  meter.turn(5, /*idle=*/false);
  uint64_t last = meter.value();
  const auto moved = [&] { return std::exchange(last, meter.value()) != last; };
  pulse.beat();  // a pass that takes long
  EXPECT_TRUE(moved());
  EXPECT_FALSE(moved()) << "a deadlock in it";
  pulse.beat();
  EXPECT_TRUE(moved());
  meter.turn(5, /*idle=*/false);
  EXPECT_TRUE(moved()) << "back to where it was";
  for (int i = 0; i < 10; ++i) {
    pulse.beat();  // of the loop, which comes round and does nothing
    meter.turn(5, /*idle=*/false);
    EXPECT_FALSE(moved());
  }
}

}  // namespace
}  // namespace tailrace
