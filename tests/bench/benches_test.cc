// Every bench as a person or a script meets it: its help, its mistakes, and the one JSON form.
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

const std::set<std::string> kKeys = {"bench", "system",   "version", "case", "metric",
                                     "unit",  "median",   "min",     "max",  "runs",
                                     "limit", "settings", "machine"};

// What a run of `modes` is, behind those.
const std::set<std::string> kModeKeys = {
    "workload",      "mode",         "seconds", "reward", "rollout_tokens_per_s",
    "staleness_max", "mismatch_max", "idle"};

// The smallest work that each takes.
std::map<std::string, std::string> shortest_runs(const TemporaryDirectory& folder) {
  return {{"kernels", "--milliseconds 0 --only '[64, 64]'"},
          // The part that needs no GPU; gpu_test.cc runs the others on the emulated one.
          {"cuda", "--parts facts"},
          {"exactness",
           "--geometry grid --threads 1 --pairs 1 --milliseconds 0 --patience 0 --contexts 64 "
           "--context 64 --sequences 2 --length 16"},
          {"tokenizer",
           fmt::format("--tokenizer {0}/tests/data/tokenizers/minimind --text {0}/NOTICE --runs 1",
                       TAILRACE_SOURCE_DIR)},
          {"train-step", "--sequences 2 --length 16 --steps 1"},
          {"engine", "--geometry grid --batch 1,3 --runs 1"},
          {"episodes", "--steps 1"},
          {"env", "--steps 100 --sessions 3 --rounds 1"},
          {"transfer", "--mib 1 --pairs 1 --rate-mbit 1000 --delay-ms 0"},
          {"rl-step", "--steps 1 --warmup 0"},
          {"scheduler", "--workers 2 --members 64 --snapshots 64 --events 100 --runs 1"},
          {"modes", fmt::format("--workloads length_tailed --modes partial --steps 2 --out {} "
                                "sft.demonstrations=20 env.settings.latency_ms=1",
                                (folder / "modes").string())},
          {"reward", fmt::format("--arms tis_2 --seeds 2 --steps 2 --out {} sft.demonstrations=20 "
                                 "eval.prompts=8",
                                 (folder / "reward").string())},
          {"seeds", fmt::format("{}/configs/quickstart.yaml --seeds 1 --out {} run.steps=1 "
                                "sft.demonstrations=100 eval.prompts=8",
                                TAILRACE_SOURCE_DIR, (folder / "seeds").string())}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Benches, AreListedWithWhatTheyMeasure) {
  TemporaryDirectory folder;
  std::set<std::string> listed, known;
  for (const std::string& line : lines_of(run_binary("bench").out)) {
    listed.insert(line.substr(0, line.find(' ')));
    EXPECT_EQ(line.find("not built"), std::string::npos) << line;
    EXPECT_GT(line.size(), 30u) << line;
  }
  for (const auto& [name, arguments] : shortest_runs(folder)) known.insert(name);
  EXPECT_EQ(listed, known) << "a bench has no row in this test, or is not in the list";
}

TEST(Benches, HaveHelpWithAnExample) {
  TemporaryDirectory folder;
  for (const auto& [name, arguments] : shortest_runs(folder)) {
    const auto result = run_binary("bench " + name + " --help");
    EXPECT_EQ(result.exit_code, 0) << name;
    EXPECT_NE(result.out.find("Example:\n  tailrace bench " + name), std::string::npos)
        << result.out;
    EXPECT_NE(result.out.find("--json"), std::string::npos) << result.out;
  }
}

TEST(Benches, PrintRowsWithTheSameKeys) {
  TemporaryDirectory folder;
  for (const auto& [name, arguments] : shortest_runs(folder)) {
    const auto result = run_binary("bench " + name + " --json " + arguments);
    // It makes two hosts, which not every machine allows.
    if (result.err.find("no hosts can be made here") != std::string::npos) continue;
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    const auto lines = lines_of(result.out);
    EXPECT_FALSE(lines.empty()) << name;
    for (const std::string& line : lines) {
      const json row = json::parse(line);
      std::set<std::string> keys;
      for (const auto& [key, value] : row.items()) keys.insert(key);
      std::set<std::string> expected = kKeys;
      if (row.contains("workload")) expected.insert(kModeKeys.begin(), kModeKeys.end());
      EXPECT_EQ(keys, expected) << line;
      EXPECT_EQ(name == "modes" && row["unit"] == "s" && row["metric"] != "steps",
                row.contains("workload"))
          << line;
      EXPECT_EQ(row["bench"], name);
      EXPECT_LE(row["min"], row["median"]) << line;
      EXPECT_LE(row["median"], row["max"]) << line;
      EXPECT_GE(row["runs"], 1) << line;
    }
  }
}

// What is said of a measurement is what it was told to do.
TEST(Benches, ExactnessSaysHowItPaired) {
  const auto result = run_binary(
      "bench exactness --json --geometry grid --threads 1 --pairs 2 --milliseconds 0.5 "
      "--patience 0.25 --only 'rms_norm [1, 64]'");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines) {
    const json settings = json::parse(line)["settings"];
    EXPECT_EQ(settings.value("pairs", -1), 2) << line;
    EXPECT_EQ(settings.value("milliseconds", -1.0), 0.5) << line;
    EXPECT_EQ(settings.value("patience", -1.0), 0.25) << line;
  }
}

TEST(Benches, ExplainAMistake) {
  TemporaryDirectory folder;
  for (const auto& [name, arguments] : shortest_runs(folder)) {
    const auto result = run_binary("bench " + name + " " + arguments + " --colour");
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_EQ(result.out, "") << name;
    EXPECT_NE(result.err.find("--colour"), std::string::npos) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 2u) << result.err;
  }
  const auto missing = run_binary("bench enigne");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("did you mean 'engine'?"), std::string::npos) << missing.err;
  const auto nothing = run_binary("bench kernels --only colour");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_EQ(nothing.err, "error: no case has 'colour' in its name; try --only linear\n");
}

}  // namespace
}  // namespace tailrace
