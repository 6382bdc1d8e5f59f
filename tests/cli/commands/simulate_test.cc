// What `tailrace plan --hardware` prints of a whole run, and leaves behind.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/run/metrics.h"
#include "core/trajectory/timeline_rows.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;

constexpr const char* kConfig =
    "run: {name: small, steps: 6}\n"
    "rollout: {prompts_per_step: 8, group_size: 4, max_response_tokens: 4000, workers: 2,\n"
    "          max_sequences: 16}\n"
    "scheduler: {mode: async}\n";
constexpr const char* kHardware =
    "hardware: [{name: gpu, price_per_hour: 3600}]\n"
    "episodes: {prompt_tokens: 100, response_tokens: 500}\n"
    "weights: {fetch_seconds: 0.5}\n";

class Simulate : public testing::Test {
 protected:
  Simulate() {
    folder_.write("a.yaml", kConfig);
    folder_.write("h.yaml", kHardware);
  }
  BinaryResult run(const std::string& arguments) {
    return run_binary("plan a.yaml --hardware h.yaml --whole " + arguments, "",
                      folder_.path().string());
  }
  Json json_of(const std::string& arguments) {
    const BinaryResult result = run("--json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  }
  std::filesystem::path operator/(const std::string& name) { return folder_.path() / name; }

  TemporaryDirectory folder_;
};

TEST_F(Simulate, PrintsStepsUseAndCost) {
  const BinaryResult result = run("");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  size_t at = 0;
  for (const char* label : {"law        async, 8 prompts x 4 samples a step\n",
                            "cluster    2 rollout workers of gpu, 16 slots each; 1 trainer worker",
                            "simulated  6 steps in", "step       ", "tokens     ", "staleness  ",
                            "rollout    ", "engines    ", "trainer    ", "cost       "}) {
    at = result.out.find(label, at);
    ASSERT_NE(at, std::string::npos) << label << " in\n" << result.out;
  }
}

TEST_F(Simulate, SaysTheSameOfTheSameSeed) {
  const Json first = json_of("");
  EXPECT_EQ(first, json_of(""));
  EXPECT_NE(first, json_of("hardware.seed=1"));
}

TEST_F(Simulate, NumbersAddUp) {
  const Json json = json_of("");
  EXPECT_EQ(json["steps"], 6);
  EXPECT_EQ(json["samples_per_step"], 32);
  EXPECT_EQ(json["devices"], 3);
  for (const char* role : {"rollout", "trainer"}) {
    double sum = 0;
    for (const auto& [use, share] : json[role].items()) sum += share.get<double>();
    EXPECT_NEAR(sum, 1, 1e-9) << role;
  }
  // Three devices at one a second.
  EXPECT_NEAR(json["cost"]["whole"], 3 * json["virtual_seconds"].get<double>(), 1e-6);
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * json["step_seconds"]["mean"].get<double>(),
              json["tokens_per_step"], 1e-6 * json["tokens_per_step"].get<double>());
}

TEST_F(Simulate, SlowerHardwareTakesLonger) {
  const auto seconds = [&](const std::string& overrides) {
    return json_of(overrides)["step_seconds"]["mean"].get<double>();
  };
  const double usual = seconds("");
  EXPECT_GT(seconds("hardware.gpu.tokens_per_s=100"), usual);
  EXPECT_GT(seconds("hardware.gpu.train_tokens_per_s=300"), usual);
  EXPECT_GT(seconds("hardware.episodes.env_seconds=20"), usual);
  EXPECT_GT(seconds("hardware.faults.worker_mtbf_hours=0.005"), usual);
}

TEST_F(Simulate, StopsWhereItIsTold) {
  EXPECT_EQ(json_of("")["stopped"], "run.steps are done");
  EXPECT_EQ(json_of("hardware.steps=2")["steps"], 2);
  EXPECT_EQ(json_of("hardware.steps=2")["stopped"], "hardware.steps are done");
  const Json json = json_of("hardware.days=0.0005");
  EXPECT_NEAR(json["virtual_seconds"], 43.2, 1e-6);
  EXPECT_EQ(json["stopped"], "hardware.days were over");
}

TEST_F(Simulate, RefusesWhatNoMachineHoldsBeforeItTakesIt) {
  const BinaryResult result = run("rollout.prompts_per_step=1000000 rollout.group_size=65536");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("this simulation would take about"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("Try a smaller rollout.prompts_per_step or rollout.group_size."),
            std::string::npos)
      << result.err;
}

TEST_F(Simulate, ComparesModes) {
  const Json json = json_of("--modes sync,async");
  ASSERT_EQ(json["modes"].size(), 2u);
  EXPECT_EQ(json["modes"][0]["mode"], "sync");
  EXPECT_EQ(json["modes"][0]["staleness"]["max"], 0);
  EXPECT_EQ(json["modes"][1]["mode"], "async");
  EXPECT_LT(json["modes"][1]["step_seconds"]["mean"], json["modes"][0]["step_seconds"]["mean"]);
  EXPECT_EQ(json["modes"][1], json_of(""));
  const BinaryResult table = run("--modes sync,async");
  EXPECT_NE(table.out.find("\nsync "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\nasync "), std::string::npos) << table.out;
  // A step has its unit, as in the text of one mode.
  const std::string alone = run("").out;
  const size_t at = alone.find("\nstep") + 12, end = alone.find(" mean", at);
  const std::string step = alone.substr(at, end - at);
  EXPECT_NE(table.out.find(" " + step + " ", table.out.find("\nasync ")), std::string::npos)
      << step << "\n"
      << table.out;
}

TEST_F(Simulate, LeavesAFolderThatReportReads) {
  const BinaryResult result = run("--out made");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto metrics = read_metrics(*this / "made/metrics.jsonl");
  ASSERT_TRUE(metrics.ok()) << metrics.failure().message;
  EXPECT_EQ(metrics.value().size(), 6u);
  const auto timeline = read_timeline(*this / "made/timeline.jsonl");
  ASSERT_TRUE(timeline.ok()) << timeline.failure().message;
  int64_t steps = 0;
  for (const TimelineRow& row : timeline.value().rows) steps += row.what == TimelineWhat::kStep;
  EXPECT_EQ(steps, 6);
  const std::string folder = (*this / "made").string();
  const BinaryResult report = run_binary("report " + folder);
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.err, "") << "no note of a journal";
  const std::string page = read_file(*this / "made/report.html").value();
  EXPECT_NE(page.find("simulated: 2 rollout workers of gpu"), std::string::npos);
  EXPECT_EQ(page.find("1970"), std::string::npos) << "virtual time has no date";
  const BinaryResult trace = run_binary("report " + folder + " --perfetto " + folder + "/t.json");
  EXPECT_EQ(trace.exit_code, 0) << trace.err;
  EXPECT_TRUE(Json::parse(read_file(*this / "made/t.json").value()).contains("traceEvents"));
  // The same config again, of the same seed, is the same file to the last byte.
  ASSERT_EQ(run("--out again").exit_code, 0);
  EXPECT_EQ(read_file(*this / "made/metrics.jsonl").value(),
            read_file(*this / "again/metrics.jsonl").value());
  EXPECT_EQ(read_file(*this / "made/timeline.jsonl").value(),
            read_file(*this / "again/timeline.jsonl").value());
}

// What its config says of itself.
TEST_F(Simulate, TheConfigOfAFolderPlaysTheSame) {
  const Json first = json_of("--out made hardware.seed=5");
  const BinaryResult again =
      run_binary("plan made/config.yaml --hardware made/hardware.yaml --whole --json", "",
                 folder_.path().string());
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out), first);
}

TEST_F(Simulate, SaysWhichModeHaltedAndNothingOfItsSteps) {
  const BinaryResult table = run("hardware.faults.env_failed=1 --modes sync,async");
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_NE(table.out.find("-  (halted)\n"), std::string::npos) << table.out;
  const BinaryResult one = run("hardware.faults.env_failed=1");
  EXPECT_EQ(one.exit_code, 1);
  EXPECT_NE(one.out.find("cost       - a step"), std::string::npos) << one.out;
  const BinaryResult unfinished = run("hardware.days=0.0005 --modes sync");
  EXPECT_NE(unfinished.out.find("(not over)\n"), std::string::npos) << unfinished.out;
}

TEST_F(Simulate, CountsTheTokensOfTheDeadAsWaste) {
  const Json json = json_of("hardware.faults.worker_mtbf_hours=0.01");
  EXPECT_GT(json["deaths"], 0);
  EXPECT_NEAR(json["untrained_tokens"],
              json["engine"]["generated_tokens"].get<double>() -
                  json["tokens_per_step"].get<double>() * json["steps"].get<double>(),
              1);
  EXPECT_GT(json["untrained_tokens"], 0);
}

TEST_F(Simulate, RefusesAFolderWithoutAName) {
  const BinaryResult result = run("--out ''");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--out is empty"), std::string::npos) << result.err;
}

TEST_F(Simulate, NeitherAddsToAFolderNorBecomesARun) {
  ASSERT_EQ(run("--out made").exit_code, 0);
  const BinaryResult again = run("--out made");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("--out made is not empty"), std::string::npos) << again.err;
  const BinaryResult launch = run_binary("launch --run-dir " + (*this / "made").string());
  EXPECT_EQ(launch.exit_code, 2);
  EXPECT_NE(launch.err.find("does not prove itself"), std::string::npos) << launch.err;
}

// Lengths that a run has recorded.
TEST_F(Simulate, PlaysRecordedEpisodesAgain) {
  folder_.write("episodes.jsonl",
                R"({"prompt_tokens": 10, "turns": [{"tokens": 30, "env_tokens": 5, )"
                R"("env_seconds": 2}, {"tokens": 10}]})"
                "\n"
                R"({"member": 1, "prompt_tokens": 10, "turns": [{"tokens": 60}]})"
                "\n");
  const Json json = json_of("hardware.episodes.from=episodes.jsonl");
  EXPECT_EQ(json["response_tokens"]["max"], 60);
  EXPECT_GE(json["response_tokens"]["mean"], 40);
}

// From a run's own folder.
TEST_F(Simulate, PlaysTheEpisodesOfARunAgain) {
  folder_.write("run.yaml",
                "run: {steps: 2}\n"
                "model:\n  create: {layers: 1, hidden_size: 32, heads: 4, max_positions: 256}\n"
                "env: {name: frozen_grid}\n"
                "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128}\n");
  const std::string folder = folder_.path().string();
  const BinaryResult real = run_binary("launch run.yaml --in-process --run-dir real", "", folder);
  ASSERT_EQ(real.exit_code, 0) << real.err;
  const BinaryResult simulated =
      run_binary("plan run.yaml --hardware h.yaml --json --like real --out simulated", "", folder);
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const Json json = Json::parse(simulated.out);
  EXPECT_EQ(json["steps"], 2);
  // The samples that were trained have the lengths that they had.
  const auto rows = read_metrics(*this / "real/metrics.jsonl"),
             made = read_metrics(*this / "simulated/metrics.jsonl");
  ASSERT_TRUE(rows.ok() && made.ok());
  ASSERT_EQ(made.value().size(), 2u);
  for (const MetricsRow& row : rows.value()) {
    const double* mean = row.find("rollout/response_tokens/mean");
    if (mean == nullptr) continue;
    EXPECT_EQ(
        *mean,
        *made.value().at(static_cast<size_t>(row.step - 1)).find("rollout/response_tokens/mean"));
  }
}

// Nothing of the hardware is a key of the run.
TEST_F(Simulate, ALaunchKnowsNoHardware) {
  const BinaryResult refused =
      run_binary("launch --dry-run a.yaml hardware.workers=7", "", folder_.path().string());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("the hardware is no part of a run's config"), std::string::npos)
      << refused.err;
}

// docs/simulate.md: the file that it shows.
TEST_F(Simulate, TheExampleOfThePageIsPlayed) {
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/simulate.md").value();
  const std::string fence = "```yaml\n";
  const size_t begin = page.find(fence) + fence.size();
  folder_.write("run.yaml",
                "run: {steps: 2}\nrollout: {prompts_per_step: 8, group_size: 4, "
                "max_response_tokens: 16384}\n");
  folder_.write("page.yaml", page.substr(begin, page.find("```", begin) - begin));
  const BinaryResult result =
      run_binary("plan run.yaml --hardware page.yaml --whole --json", "", folder_.path().string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["devices"], 64);
}

// Of as little as shows that they are sound; bench and docs/simulate.md play them whole.
TEST(SimulatedConfigs, AreSound) {
  for (const char* config : {"simulate_64", "simulate_3000"}) {
    const BinaryResult result = run_binary(fmt::format(
        "plan {0}/configs/{1}.yaml --hardware {0}/configs/{1}.hardware.yaml --whole --json "
        "hardware.days=0.02",
        TAILRACE_SOURCE_DIR, config));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    const Json json = Json::parse(result.out);
    EXPECT_GT(json["engine"]["generated_tokens"], 1e6) << config;
  }
}

}  // namespace
}  // namespace tailrace
