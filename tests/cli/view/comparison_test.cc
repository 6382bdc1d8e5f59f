#include "cli/view/comparison.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

MetricsRow row(int64_t step, MetricList values) {
  MetricsRow made;
  made.step = step;
  made.unix_seconds = 100 + 10 * static_cast<double>(step);
  made.values = std::move(values);
  return made;
}

ReportData run(std::string name, double gain, std::string config) {
  ReportData data;
  data.name = std::move(name);
  for (int64_t step = 1; step <= 10; ++step)
    data.rows.push_back(row(step, {{"reward/mean", gain * static_cast<double>(step)},
                                   {"time/step", 10},
                                   {"eval/success", step == 7 ? 0.9 : 0.05 * gain}}));
  data.config = std::move(config);
  return data;
}

std::string value_of(const std::vector<ComparedRow>& rows, std::string_view what, size_t run) {
  for (const ComparedRow& row : rows)
    if (row.what == what) return row.values.at(run);
  return "(no row)";
}

TEST(Comparison, SaysWhatEachRunCameTo) {
  const std::vector<ReportData> runs = {run("a", 1, ""), run("b", 2, "")};
  const auto rows = compare_outcomes(runs);
  EXPECT_EQ(value_of(rows, "steps", 0), "10");
  EXPECT_EQ(value_of(rows, "seconds", 1), "100");
  EXPECT_EQ(value_of(rows, "reward/mean, last tenth", 0), "10");
  EXPECT_EQ(value_of(rows, "reward/mean, last tenth", 1), "20");
  EXPECT_EQ(value_of(rows, "eval/success, last", 1), "0.1");
  EXPECT_EQ(value_of(rows, "eval/success, best (step)", 1), "0.9 (7)");
  EXPECT_EQ(value_of(rows, "sft/eval_loss, last tenth", 0), "(no row)") << "neither has it";
}

TEST(Comparison, AMetricThatOneRunLacksIsNoZero) {
  std::vector<ReportData> runs = {run("a", 1, ""), run("b", 2, "")};
  for (MetricsRow& one : runs[1].rows)
    std::erase_if(one.values, [](const auto& value) { return value.first == "reward/mean"; });
  EXPECT_EQ(value_of(compare_outcomes(runs), "reward/mean, last tenth", 1), "");
  // Nor is one that is not finite.
  runs[0].rows.back().values[0].second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(value_of(compare_outcomes(runs), "reward/mean, last tenth", 0), "9");
  EXPECT_NE(comparison_text(runs).find("  -"), std::string::npos);
}

TEST(Comparison, NamesTheKeysThatDiffer) {
  const std::vector<ReportData> runs = {
      run("a", 1,
          "run: {name: a, seed: 0}\nalgo: {name: grpo}\nreward: {command: [python3, x.py]}\n"
          "datasets: [{name: sums, ratio: 1}]\n"),
      run("b", 1,
          "run: {name: b, seed: 1}\nalgo: {name: grpo}\nreward: {command: [python3, y.py]}\n"
          "datasets: [{name: sums, ratio: 2}]\noptim: {lr: 1e-3}\n")};
  const auto rows = compare_configs(runs);
  EXPECT_EQ(value_of(rows, "run.seed", 1), "1");
  EXPECT_EQ(value_of(rows, "algo.name", 0), "(no row)");
  EXPECT_EQ(value_of(rows, "run.name", 0), "(no row)");
  EXPECT_EQ(value_of(rows, "reward.command", 1), "[python3, y.py]");
  EXPECT_EQ(value_of(rows, "datasets.sums.ratio", 1), "2");
  EXPECT_EQ(value_of(rows, "optim.lr", 0), "");
  EXPECT_EQ(rows.size(), 4u);
  EXPECT_NE(comparison_text(std::vector{runs[0], runs[0]}).find("their configs are the same"),
            std::string::npos);
}

TEST(Comparison, APageHasACurveOfEachRunInOneChart) {
  const std::vector<ReportData> runs = {run("a<b", 1, "run: {seed: 0}\n"),
                                        run("c", 2, "run: {seed: 1}\n")};
  const std::string page = comparison_page(runs);
  EXPECT_EQ(page.find("<title>a<b"), std::string::npos) << "names are no markup";
  EXPECT_NE(page.find("a&lt;b and c"), std::string::npos);
  EXPECT_NE(page.find("reward/mean"), std::string::npos);
  EXPECT_NE(page.find("run.seed"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
