// Does it learn? The quickstart, shortened, over real processes; the rise must be beyond chance.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/run/metrics.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

struct Evaluations {
  double first = -1, last = -1, episodes = 0;
};

Evaluations read_evaluations(const std::filesystem::path& run) {
  Evaluations found;
  auto rows = read_metrics(run / "metrics.jsonl");
  EXPECT_TRUE(rows.ok());
  if (!rows.ok()) return found;
  for (const auto& row : rows.value()) {
    const double* success = row.find("eval/success");
    if (success == nullptr) continue;
    if (found.first < 0) found.first = *success;
    found.last = *success;
    found.episodes = *row.find("eval/episodes");
  }
  return found;
}

TEST(Learning, QuickstartRisesOnHeldOutGridsBeyondChance) {
  TemporaryDirectory folder;
  auto result = run_binary(
      fmt::format("launch {}/configs/quickstart.yaml --run-dir {}/run run.seed=17 run.steps=20",
                  TAILRACE_SOURCE_DIR, folder.path().string()));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;

  Evaluations eval = read_evaluations(folder / "run");
  ASSERT_EQ(eval.episodes, 512);
  // Two proportions of n held-out episodes each: under "nothing was learned" z is standard normal,
  // and z > 8 has a probability below 1e-15.
  double pooled = (eval.first + eval.last) / 2;
  double z = (eval.last - eval.first) / std::sqrt(2 * pooled * (1 - pooled) / eval.episodes);
  EXPECT_GT(z, 8) << eval.first << " -> " << eval.last;
  EXPECT_LT(eval.first, 0.5) << "supervised warm-up alone must not solve the task";

  std::string line = fmt::format("quickstart: success {:.2f} -> {:.2f} (held-out, 512 episodes)",
                                 eval.first, eval.last);
  EXPECT_NE(result.out.find(line), std::string::npos) << result.out;

  // Its checkpoint, evaluated by somebody else, gives the same number.
  auto again = run_binary(fmt::format("eval --run {}/run --json", folder.path().string()));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(again.out)["success"]["mean"], eval.last);
}

// The demonstrator mostly asks for one price a turn, and one call in ten is malformed.
TEST(Learning, CallsOfToolsBecomeParallelAndWellFormed) {
  TemporaryDirectory folder;
  const auto result = run_binary(
      fmt::format("launch {}/configs/tool_calls.yaml --run-dir {}/run run.seed=17 run.steps=10",
                  TAILRACE_SOURCE_DIR, folder.path().string()));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Evaluations eval = read_evaluations(folder / "run");
  ASSERT_EQ(eval.episodes, 512);
  const double pooled = (eval.first + eval.last) / 2;
  EXPECT_GT(eval.last - eval.first, 8 * std::sqrt(2 * pooled * (1 - pooled) / eval.episodes))
      << eval.first << " -> " << eval.last;
  const auto rows = read_metrics(folder / "run/metrics.jsonl");
  ASSERT_TRUE(rows.ok());
  std::vector<double> malformed, turns;
  for (const MetricsRow& row : rows.value()) {
    if (row.find("eval/success") == nullptr) continue;
    malformed.push_back(*row.find("eval/malformed_calls"));
    turns.push_back(*row.find("eval/turns/mean"));
  }
  ASSERT_GE(malformed.size(), 2u);
  EXPECT_LT(malformed.back(), malformed.front() / 2);
  EXPECT_GT(turns.front(), 2.5);  // one price a turn takes three
  EXPECT_LT(turns.back(), 2.5);   // all of them take two
}

}  // namespace
}  // namespace tailrace
