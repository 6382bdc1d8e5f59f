#include "cli/view/missing_rows.h"

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using Texts = std::vector<std::string>;

MetricsRow step(int64_t n) {
  return {.step = n, .version = n - 1, .unix_seconds = 0, .values = {{"reward/mean", 0.5}}};
}
MetricsRow evaluation(int64_t version) {
  return {.step = version, .version = version, .unix_seconds = 0, .values = {{"eval/episodes", 8}}};
}
MetricsRow warm_up(int64_t done, double total) {
  return {.step = done, .version = -1, .unix_seconds = 0, .values = {{"sft/updates", total}}};
}

TEST(MissingRows, StepsAreNamed) {
  EXPECT_EQ(missing_rows(std::vector<MetricsRow>{}, {}), Texts{});
  EXPECT_EQ(missing_rows(std::vector{step(1), step(2)}, {}), Texts{});
  EXPECT_EQ(missing_rows(std::vector{step(1), step(3)}, {}), Texts{"step 2"});
  EXPECT_EQ(missing_rows(std::vector{step(1), step(3)}, {.published = 5}),
            Texts{"3 steps from 2 to 5"});
}

TEST(MissingRows, EvaluationsThatAreDueAreNamed) {
  const std::vector rows = {step(1), step(2), step(3), step(4), step(5), evaluation(0)};
  EXPECT_EQ(missing_rows(rows, {}), Texts{}) << "not due";
  ExpectedRows expected{.evaluates = true, .interval_steps = 2};
  EXPECT_EQ(missing_rows(rows, expected),
            Texts{"the evaluation that the config asks for of version 2"})
      << "that of version 4 may be reported yet";
  expected.is_over = true;
  EXPECT_EQ(missing_rows(rows, expected),
            Texts{"3 evaluations that the config asks for, of versions from 2 to 5"});
  expected.interval_steps = 0;
  EXPECT_EQ(missing_rows(rows, expected),
            Texts{"the evaluation that the config asks for of version 5"});
}

TEST(MissingRows, OfAWarmUpTheyAreNamedAsFarAsItsRowsTell) {
  const ExpectedRows expected{.published = 0, .warm_up = true};
  const auto missing = [&](std::vector<MetricsRow> rows) {
    rows.push_back(step(1));
    return missing_rows(rows, expected);
  };
  EXPECT_EQ(missing({warm_up(2, 7), warm_up(4, 7), warm_up(6, 7), warm_up(7, 7)}), Texts{});
  EXPECT_EQ(missing({warm_up(2, 7), warm_up(4, 7), warm_up(6, 7)}), Texts{"supervised update 7"});
  MetricsRow measured = warm_up(3, 7);
  measured.values.emplace_back("sft/eval_loss", 1);
  EXPECT_EQ(missing({warm_up(2, 7), measured, warm_up(4, 7), warm_up(6, 7), warm_up(7, 7)}),
            Texts{});
  EXPECT_EQ(missing({warm_up(4, 7), warm_up(6, 7)}),
            (Texts{"2 points of the supervised training, updates from 2 to 7"}));
  EXPECT_EQ(missing({warm_up(7, 7)}), Texts{}) << "it may have been the only one";
  EXPECT_EQ(missing({}), Texts{"the warm-up"});
  EXPECT_EQ(missing_rows(std::vector{warm_up(2, 7)}, expected), Texts{}) << "it goes on";
}

TEST(MissingRows, TheCheckpointsOfARunTellHowFarItIs) {
  TemporaryDirectory folder;
  const RunPaths paths{folder / "run"};
  EXPECT_EQ(warning_of_missing_rows(paths, {}), "");
  std::filesystem::create_directories(paths.checkpoints() / checkpoint_name(2));
  const std::string warning = "warning: " + paths.metrics().string() + " has no rows of ";
  EXPECT_EQ(warning_of_missing_rows(paths, {}),
            warning + "2 steps from 1 to 2: figures and reports lack them\n");
  const std::string rows = format_metrics_row(step(1)) + "\n" + format_metrics_row(step(2)) + "\n";
  ASSERT_TRUE(write_file_atomic(paths.metrics(), rows));
  EXPECT_EQ(warning_of_missing_rows(paths, {}), "");
  ASSERT_TRUE(write_file_atomic(paths.metrics(), "no row\n" + rows));
  EXPECT_NE(warning_of_missing_rows(paths, {}).find("warning: "), std::string::npos);
}

}  // namespace
}  // namespace tailrace
