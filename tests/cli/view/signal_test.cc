#include "cli/view/signal.h"

#include <vector>

#include <gtest/gtest.h>

#include "cli/view/progress.h"
#include "cli/view/report_page.h"

namespace tailrace {
namespace {

MetricsRow step_of(int64_t step, double silent_share) {
  return {.step = step,
          .version = step,
          .values = {{"reward/mean", 0.5},
                     {"rollout/groups", 16},
                     {"rollout/zero_signal_frac", silent_share}}};
}

std::vector<MetricsRow> steps_of(const std::vector<double>& shares) {
  std::vector<MetricsRow> rows;
  for (const double share : shares) {
    const int64_t step = 1 + std::ssize(rows) / 2;
    rows.push_back(step_of(step, share));
    rows.push_back({.step = step, .values = {{"eval/reward", 0.9}}});  // is no step
  }
  return rows;
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

TEST(Signal, OfARunIsMissedInAllStepsOrInTheLast) {
  EXPECT_EQ(signal_of_run(steps_of({1, 1, 1})),
            "No signal in any of the 3 steps: in each group all rewards were equal, so that "
            "nothing was learned from them.");
  EXPECT_EQ(signal_of_run(steps_of({1})).find("No signal in the only step: "), 0u);
  EXPECT_EQ(signal_of_run(steps_of({0.9, 1, 1, 1, 1, 1})).find("No signal in the last 5 of 6 "),
            0u);
  EXPECT_EQ(signal_of_run(steps_of({0.9, 1, 1, 1, 1})), "") << "bad luck";
  EXPECT_EQ(signal_of_run(steps_of({1, 1, 1, 1, 1, 1, 0})), "");
  EXPECT_EQ(signal_of_run({}), "");
}

TEST(Signal, ASolvedRunIsToldSo) {
  std::vector<MetricsRow> rows = steps_of({1, 1});
  for (MetricsRow& row : rows)
    if (row.find("reward/mean") != nullptr) row.values.emplace_back("env/success", 1.0);
  EXPECT_TRUE(is_solved(rows));
  EXPECT_NE(signal_of_run(rows).find("nothing more to learn"), std::string::npos);
  for (auto& [name, value] : rows[2].values)
    if (name == "env/success") value = 0.5;
  EXPECT_FALSE(is_solved(rows));
  EXPECT_NE(signal_of_run(rows).find("all rewards were equal"), std::string::npos);
}

TEST(Signal, StandsInEachLineAndAtTheTopOfTheReport) {
  const std::vector<MetricsRow> rows = steps_of({1, 1});
  const ProgressState state{"run", 2, rows};
  EXPECT_EQ(progress_line(state, rows[0]).find("step 1/2  reward 0.500  no signal in 16 of 16"),
            0u);
  EXPECT_EQ(progress_block(state, 80)[2], "  no signal in 16 of 16 groups");
  const auto page_of = [](const std::vector<MetricsRow>& shown) {
    ReportData data;
    data.rows = shown;
    return make_report_page(data);
  };
  const std::string page = page_of(rows);
  const size_t at = page.find("No signal in any of the 2 steps");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(at, page.find("<h1>"));
  EXPECT_LT(at, page.find("class=\"tile\""));
  EXPECT_EQ(page_of(steps_of({0, 1})).find("No signal"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
