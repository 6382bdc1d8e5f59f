// `tailrace plan` as a person meets it: it measures this machine, so its numbers are compared with
// each other and with what they must be made of.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

const std::string kConfig = std::string(TAILRACE_SOURCE_DIR) +
                            "/configs/quickstart.yaml rollout.prompts_per_step=4 train.threads=1";

double part(const json& step, const char* name) { return step.at(name).get<double>(); }

TEST(Plan, SaysWhereTheTimeOfAStepGoes) {
  const auto result = run_binary("plan --json " + kConfig);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  const json& step = plan.at("step");
  for (const char* name : {"install", "generate", "train", "publish"})
    EXPECT_GT(part(step, name), 0) << name;
  EXPECT_NEAR(part(step, "seconds"),
              part(step, "install") + part(step, "generate") + part(step, "reward") +
                  part(step, "train") + part(step, "publish") + part(step, "beside"),
              1e-9);
  EXPECT_NEAR(plan.at("seconds").get<double>(), 80 * part(step, "seconds"), 1e-6);
  EXPECT_GT(plan.at("machine").at("prefill_tokens_per_s").get<double>(), 0);
  EXPECT_GT(plan.at("machine").at("payload_bytes").get<double>(), 1e5);
  EXPECT_NE(plan.at("lengths").get<std::string>().find("random weights"), std::string::npos);
  // The memory is that of a dry run.
  EXPECT_GT(plan.at("memory").at("total_bytes").get<int64_t>(), int64_t{100} << 20);
}

TEST(Plan, TakesTheLengthsOfARun) {
  TemporaryDirectory folder;
  const std::string run = (folder / "run").string();
  const auto launched = run_binary("launch " + kConfig + " --run-dir " + run +
                                   " run.steps=2 sft.demonstrations=50 eval.prompts=8");
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  const auto result = run_binary("plan --json " + kConfig + " --like " + run);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan.at("lengths"), "64 episodes of 2 steps in " + run);
  // What the run says of itself: mean tokens of a sample, in its last row but the evaluation's.
  double tokens = 0;
  int64_t steps = 0;
  std::istringstream rows(read_file(folder / "run/metrics.jsonl").value());
  for (std::string line; std::getline(rows, line);) {
    const json row = json::parse(line);
    if (!row.contains("rollout/response_tokens/mean")) continue;
    tokens += row.at("rollout/response_tokens/mean").get<double>();
    ++steps;
  }
  ASSERT_EQ(steps, 2);
  EXPECT_NEAR(part(plan.at("step"), "sampled_tokens"), 32 * tokens / 2, 1e-6);
}

TEST(Plan, RefusesARunWithoutTraces) {
  TemporaryDirectory folder;
  const auto result = run_binary("plan " + kConfig + " --like " + folder.path().string());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("holds no traces of a step"), std::string::npos) << result.err;
}

TEST(Plan, PlacesAMistakeOfTheConfig) {
  const auto result = run_binary("plan " + kConfig + " rollout.workres=1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("rollout.workers"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tailrace
