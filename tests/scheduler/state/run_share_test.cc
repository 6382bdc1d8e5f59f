#include "scheduler/state/run_share.h"

#include <gtest/gtest.h>

namespace tailrace::scheduler {
namespace {

Config with_data(std::vector<DatasetConfig> datasets, int64_t steps = 0) {
  Config config;
  config.datasets = std::move(datasets);
  config.steps = steps;
  return config;
}

TEST(RunShare, IsThatOfTheStepsOrOfTheDataThatEndsFirst) {
  const Config steps = with_data({{.prompts_per_step = 4}}, 8);
  EXPECT_EQ(share_done(steps, 0, {}), 0);
  EXPECT_EQ(share_done(steps, 2, {8}), 0.25);
  EXPECT_EQ(share_done(steps, 8, {32}), 1);
  EXPECT_EQ(share_done(steps, 9, {36}), 1) << "run.steps has shrunk";
  const Config data = with_data({{.prompts_per_step = 4, .prompts_per_epoch = 9, .epochs = 2}});
  EXPECT_EQ(share_done(data, 0, {}), 0);
  EXPECT_NEAR(share_done(data, 1, {4}), 4.0 / 18, 1e-15);
  EXPECT_NEAR(share_done(data, 1, {10}), 10.0 / 18, 1e-15) << "six of them had no signal";
  EXPECT_EQ(share_done(data, 5, {18}), 1) << "the last step is a short one";
  const Config both = with_data({{.prompts_per_step = 4, .prompts_per_epoch = 9, .epochs = 2}}, 10);
  EXPECT_NEAR(share_done(both, 1, {4}), 4.0 / 18, 1e-15);
  EXPECT_EQ(share_done(both, 5, {4}), 0.5);
}

TEST(RunShare, GoesOnUntilTheLastDatasetHasEnded) {
  const Config config = with_data({{.prompts_per_step = 3, .prompts_per_epoch = 30, .epochs = 1},
                                   {.prompts_per_step = 1, .prompts_per_epoch = 4, .epochs = 1},
                                   {.prompts_per_step = 0, .prompts_per_epoch = 7, .epochs = 1}});
  EXPECT_NEAR(share_done(config, 4, {12, 4, 0}), 0.4, 1e-15);
  EXPECT_NEAR(share_done(config, 10, {30, 4, 0}), 1, 1e-15);
  // One that has no end says nothing of the run's.
  EXPECT_EQ(share_done(with_data({{.prompts_per_step = 3, .prompts_per_epoch = 30, .epochs = 1},
                                  {.prompts_per_step = 1}},
                                 20),
                       5, {15, 5}),
            0.25);
}

}  // namespace
}  // namespace tailrace::scheduler
