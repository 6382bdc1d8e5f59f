// A whole run whose answers are programs, over processes: what the policy writes is run isolated.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/run/metrics.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

TEST(LaunchPrograms, LearnsFromTheTestsThatItsProgramsPass) {
  TemporaryDirectory folder;
  const auto result = run_binary(
      fmt::format("launch {}/configs/programs.yaml --run-dir {}/run run.steps=6 sft.epochs=20 "
                  "eval.prompts=0",
                  TAILRACE_SOURCE_DIR, folder.path().string()));
  if (result.err.find("this machine cannot test programs") != std::string::npos)
    GTEST_SKIP() << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto rows = read_metrics(folder / "run/metrics.jsonl");
  ASSERT_TRUE(rows.ok()) << rows.failure().message;
  int steps = 0;
  for (const MetricsRow& row : rows.value()) {
    if (row.find("env/tests_passed") == nullptr) continue;
    ++steps;
    // After its warm-up it writes programs, and some of them compute something else.
    EXPECT_GT(*row.find("reward/mean"), 0);
    EXPECT_EQ(*row.find("reward/mean"), *row.find("env/success"));
    EXPECT_GE(*row.find("env/tests_passed"), *row.find("env/success"));
    EXPECT_GT(*row.find("env/slowest_test_seconds"), 0);
    EXPECT_EQ(*row.find("rollout/infra_failed_frac"), 0);
  }
  EXPECT_EQ(steps, 6);
}

}  // namespace
}  // namespace tailrace
