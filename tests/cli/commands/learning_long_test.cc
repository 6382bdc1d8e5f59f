// The promise of the quickstart, for ten run seeds out of ten. Minutes: left to `make check`.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

TEST(LearningLong, EverySeedOfTheQuickstartLearns) {
  TemporaryDirectory folder;
  auto result = run_binary(
      fmt::format("bench seeds {}/configs/quickstart.yaml --seeds 10 --out {}/seeds --json",
                  TAILRACE_SOURCE_DIR, folder.path().string()));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  auto report = nlohmann::json::parse(result.out);
  ASSERT_EQ(report["runs"].size(), 10u);
  for (const auto& run : report["runs"]) {
    EXPECT_LT(run["success_first"], 0.5) << run;
    EXPECT_GE(run["success_last"], 0.95) << run;
    EXPECT_LT(run["invalid_last"], 0.01) << run;
  }
}

}  // namespace
}  // namespace tailrace
