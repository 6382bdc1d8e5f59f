#include "scheduler/simulator/summary.h"

#include <vector>

#include <gtest/gtest.h>

namespace tailrace::simulator {
namespace {

TEST(RunSummaries, OfNoStepAreNothing) {
  const RunSummary summary = summary_of({});
  EXPECT_EQ(summary.steps, 0);
  EXPECT_EQ(summary.step_mean, 0);
  EXPECT_EQ(summary.tokens_per_s, 0);
}

TEST(RunSummaries, WeighSamplesAndHalveTheMiddle) {
  const std::vector<StepRecord> steps = {{.step = 1,
                                          .begun = 10,
                                          .handed = 12,
                                          .ended = 14,
                                          .samples = 1,
                                          .tokens = 100,
                                          .old_tokens = 50,
                                          .staleness_mean = 3,
                                          .staleness_max = 3,
                                          .longest = 100},
                                         {.step = 2,
                                          .begun = 14,
                                          .handed = 20,
                                          .ended = 22,
                                          .samples = 3,
                                          .tokens = 300,
                                          .old_tokens = 50,
                                          .staleness_mean = 1,
                                          .staleness_max = 2,
                                          .longest = 150}};
  const RunSummary summary = summary_of(steps);
  EXPECT_EQ(summary.steps, 2);
  EXPECT_DOUBLE_EQ(summary.seconds, 12);
  EXPECT_DOUBLE_EQ(summary.step_mean, 6);
  EXPECT_DOUBLE_EQ(summary.step_median, 6) << "between 4 and 8";
  EXPECT_DOUBLE_EQ(summary.rollout_median, 4) << "between 2 and 6";
  EXPECT_DOUBLE_EQ(summary.samples_per_step, 2);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 400.0 / 12);
  EXPECT_DOUBLE_EQ(summary.tokens_per_sample, 100);
  EXPECT_DOUBLE_EQ(summary.staleness_mean, 1.5) << "one of 3 and three of 1";
  EXPECT_DOUBLE_EQ(summary.staleness_max, 3);
  EXPECT_DOUBLE_EQ(summary.old_tokens, 0.25);
  EXPECT_EQ(summary.longest, 150);
  EXPECT_DOUBLE_EQ(summary_of(std::vector(steps.begin(), steps.begin() + 1)).step_median, 4);
}

}  // namespace
}  // namespace tailrace::simulator
