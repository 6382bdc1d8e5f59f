#include "scheduler/state/options.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/config/yaml_config.h"

namespace tailrace::scheduler {
namespace {

RunShape shape(int64_t prompts_per_epoch, int64_t prompts_per_step = 8) {
  return {.steps = 3,
          .datasets = {{.prompts_per_step = prompts_per_step,
                        .prompts_per_epoch = prompts_per_epoch,
                        .epochs = 0}}};
}

constexpr StepOptions kStep{.prompts_per_step = 8, .group_size = 4};

std::string refusal(const SchedulerOptions& options, const RunShape& run,
                    const StepOptions& step = kStep) {
  try {
    (void)make_config(options, step, {}, {}, {}, run);
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find(error.key() + " "), 0u) << error.key();
    return error.what();
  }
  return "";
}

TEST(SchedulerOptions, HaveTheDefaultsOfTheConfig) {
  Config expected;
  expected.datasets = {{.prompts_per_step = 8, .prompts_per_epoch = 100, .epochs = 0}};
  expected.group_size = 4;
  expected.steps = 3;
  EXPECT_EQ(make_config({}, kStep, {}, {}, {}, shape(100)), expected);
}

TEST(SchedulerOptions, ReachTheConfigFromTheirKeys) {
  SchedulerOptions options;
  bind_config(parse_config("replace_zero_signal: true\n"
                           "max_gen_batches: 4\n"
                           "retries_env_failed: 3\n"
                           "retries_verifier_failed: 4\n"
                           "retries_lost: 5\n"
                           "lease_seconds: 0.25\n"
                           "verify_seconds: 6\n"
                           "install_seconds: 7\n"
                           "breaker_window: 9\n"
                           "breaker_share_ratio: 0.75\n",
                           "a.yaml", {}),
              options);
  StepOptions step;
  bind_config(parse_config("prompts_per_step: 6\ngroup_size: 2\n", "a.yaml", {}), step);
  const Config config = make_config(options, step, {}, {}, {}, shape(100));
  EXPECT_EQ(step.prompts_per_step, 6);
  EXPECT_EQ(config.group_size, 2);
  EXPECT_TRUE(config.replace_zero_signal);
  EXPECT_EQ(config.max_gen_batches, 4);
  EXPECT_EQ(config.retries, (RetryBounds{.env_failed = 3, .verifier_failed = 4, .lost = 5}));
  EXPECT_EQ(config.deadlines, (Deadlines{.lease = std::chrono::milliseconds(250),
                                         .verify = std::chrono::seconds(6),
                                         .install = std::chrono::seconds(7)}));
  EXPECT_EQ(config.breaker, (BreakerConfig{.window = 9, .share = 0.75}));
}

TEST(SchedulerOptions, RefuseARunWithoutEnd) {
  RunShape run = shape(100);
  run.steps = 0;
  EXPECT_EQ(refusal({}, run).find("run.steps is 0"), 0u) << refusal({}, run);
  run.datasets[0].epochs = 1;
  EXPECT_EQ(refusal({}, run), "");
  run.datasets[0].prompts_per_epoch = 0;  // a stream has no epochs
  EXPECT_EQ(refusal({}, run).find("run.steps is 0"), 0u);
}

TEST(SchedulerOptions, RefuseAFilterThatKeepsNothing) {
  const StepOptions single{.prompts_per_step = 8, .group_size = 1};
  SchedulerOptions options;
  EXPECT_EQ(refusal(options, shape(0), single), "");
  options.replace_zero_signal = true;
  EXPECT_EQ(refusal(options, shape(0), single).find("scheduler.replace_zero_signal"), 0u);
}

TEST(SchedulerOptions, RefuseAStepWithoutPrompts) {
  EXPECT_EQ(refusal({}, shape(0, 0)).find("rollout.prompts_per_step is 0"), 0u);
}

}  // namespace
}  // namespace tailrace::scheduler
