// The promise of the quickstart, for ten run seeds out of ten. Minutes: left to `make check`.
#include <map>
#include <sstream>
#include <string>

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
  std::map<std::string, int> runs;  // by metric
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row["case"].get<std::string>().starts_with("seed ")) continue;
    const std::string metric = row["metric"];
    const double value = row["median"];
    ++runs[metric];
    if (metric == "success before RL") {
      EXPECT_LT(value, 0.5) << line;
    } else if (metric == "success after RL") {
      EXPECT_GE(value, 0.95) << line;
    } else if (metric == "invalid after RL") {
      EXPECT_LT(value, 0.01) << line;
    }
  }
  for (const char* metric : {"success before RL", "success after RL", "invalid after RL"})
    EXPECT_EQ(runs[metric], 10) << metric;
}

}  // namespace
}  // namespace tailrace
