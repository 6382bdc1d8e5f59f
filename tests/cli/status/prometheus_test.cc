#include "cli/status/prometheus.h"

#include <cmath>
#include <limits>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "scheduler/decide/decide.h"

namespace tailrace {
namespace {

RunStatus status_with_workers() {
  scheduler::Config config;
  config.datasets = {scheduler::DatasetConfig{.prompts_per_step = 1}};
  config.steps = 40;
  scheduler::State state(config);
  for (const scheduler::WorkerUp& up :
       {scheduler::WorkerUp{.worker = "reward-0", .role = Role::kReward, .slots = 4},
        scheduler::WorkerUp{.worker = "rollout-0",
        .slots = 8,
        .joined = true,
        .site = {.pool = "far", .cluster = "a\"b\\c\nd", .host = "gpu-8"}}})
    (void)scheduler::decide(state, up, Time(1));
  StatusFacts facts;
  facts.run = "runs/x";
  facts.state = "running";
  return {std::move(facts), std::move(state), true};
}

// The grammar of the format: a family's samples stand together behind one TYPE, no series stands
// twice.
void expect_well_formed(const std::string& text) {
  const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*")*\})? (NaN|[+-]Inf|[-+0-9.e]+))re");
  std::set<std::string> families, series;
  std::string family;
  LineReader lines(text);
  while (auto line = lines.next()) {
    ASSERT_TRUE(line->complete) << line->text;
    const std::string words(line->text);
    if (words.starts_with("# TYPE ")) {
      family = words.substr(7, words.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << words;
    }
    if (words.starts_with("#")) continue;
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(words, parts, sample)) << words;
    EXPECT_EQ(parts[1], family) << words;
    EXPECT_TRUE(series.insert(words.substr(0, words.rfind(' '))).second) << words;
  }
}

TEST(Prometheus, HasTheNewestValueOfEachMetricAndEachWorker) {
  const RunStatus status = status_with_workers();
  const std::string text =
      prometheus_text(status, {{"reward/mean", std::nan("")},
                               {"eval/success", 0.5},
                               {"policy/ratio", std::numeric_limits<double>::infinity()}});
  expect_well_formed(text);
  for (const char* line :
       {"tailrace_run{run=\"runs/x\",state=\"running\"} 1\n", "tailrace_steps 40\n",
        "tailrace_reward_mean NaN\n", "tailrace_eval_success 0.5\n", "tailrace_policy_ratio +Inf\n",
        "tailrace_worker_connected{worker=\"reward-0\",role=\"reward\"} 1\n",
        "tailrace_worker_slots{worker=\"rollout-0\",role=\"rollout\",pool=\"far\","
        "cluster=\"a\\\"b\\\\c\\nd\",host=\"gpu-8\"} 8\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

// Nothing that the journal said last may pass for what is true now.
TEST(Prometheus, OfARunThatNobodyDrivesNothingIsConnected) {
  RunStatus status = status_with_workers();
  EXPECT_NE(prometheus_text(status, {}).find("tailrace_silent_seconds 0\n"), std::string::npos);
  status.runs = false;
  status.facts.state = "interrupted";
  std::string text = prometheus_text(status, {});
  expect_well_formed(text);
  EXPECT_NE(text.find("tailrace_worker_connected{worker=\"reward-0\",role=\"reward\"} 0\n"),
            std::string::npos);
  EXPECT_EQ(text.find("silent"), std::string::npos);
  status.facts.state = "unknown";
  text = prometheus_text(status, {{"reward/mean", 1}});
  EXPECT_EQ(text.substr(text.find("\ntailrace")),
            "\ntailrace_run{run=\"runs/x\",state=\"unknown\"} 1\n");
}

// Names of environments' metrics are theirs.
TEST(Prometheus, TwoMetricsOfOneNameAreNotOneSeries) {
  const std::string text = prometheus_text(
      status_with_workers(), {{"env/a-b", 1}, {"env/a_b", 2}, {"step", 3}, {"env/x\n# y", 4}});
  expect_well_formed(text);
  EXPECT_NE(text.find("tailrace_env_a_b 1\n# env/a_b is left out"), std::string::npos) << text;
  EXPECT_NE(text.find("tailrace_step 0\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace tailrace
