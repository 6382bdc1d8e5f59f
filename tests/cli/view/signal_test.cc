#include "cli/view/signal.h"

#include <vector>

#include <gtest/gtest.h>

#include "cli/view/progress.h"

namespace tailrace {
namespace {

MetricsRow step_of(int64_t step, double silent_share) {
  return {.step = step,
          .version = step,
          .values = {{"reward/mean", 0.5},
                     {"rollout/groups", 16},
                     {"rollout/zero_signal_frac", silent_share}}};
}

TEST(Signal, OfAStepIsMissedWhereMostGroupsHaveNone) {
  EXPECT_EQ(signal_of_step(step_of(0, 1)), "no signal in 16 of 16 groups");
  EXPECT_EQ(signal_of_step(step_of(0, 9.0 / 16)), "no signal in 9 of 16 groups");
  EXPECT_EQ(signal_of_step(step_of(0, 0.5)), "");
  EXPECT_EQ(signal_of_step({.values = {{"reward/mean", 1}, {"rollout/zero_signal_frac", 1}}}), "")
      << "an older build says no number of groups";
}

MetricsRow failures_of(double prompts, double samples, double share, double broken) {
  return {.values = {{"rollout/failed_prompts", prompts},
                     {"rollout/failed_samples", samples},
                     {"rollout/infra_failed_frac", share},
                     {"rollout/broken_tasks", broken}}};
}

TEST(Exclusions, AreSaidOfAStepAndOfTheRun) {
  EXPECT_EQ(exclusions_of_step(failures_of(0, 0, 0.004, 1)), "");
  EXPECT_EQ(exclusions_of_step(failures_of(1, 2, 0.21, 0)),
            "1 prompt failed, 2 samples failed for good, 21 % of attempts failed");
  const std::vector<MetricsRow> rows = {failures_of(0, 1, 0.1, 1), failures_of(2, 0, 0, 3)};
  EXPECT_EQ(exclusions_of_run(rows),
            "excluded: 2 prompts failed for good, 1 sample of trained groups failed for good, 3 "
            "broken tasks; the logs of the run say why");
  EXPECT_EQ(exclusions_of_run(std::vector{failures_of(0, 0, 0.3, 0)}), "")
      << "what was tried again with success is not excluded";
}

TEST(Signal, StandsInEachLine) {
  const std::vector<MetricsRow> rows = {step_of(1, 1), step_of(2, 1)};
  const ProgressState state{"run", 2, rows};
  EXPECT_EQ(progress_line(state, rows[0]).find("step 1/2  reward 0.500  no signal in 16 of 16"),
            0u);
  EXPECT_EQ(progress_block(state, 80)[2], "  no signal in 16 of 16 groups");
}

}  // namespace
}  // namespace tailrace
