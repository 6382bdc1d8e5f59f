// Every bench as a person or a script meets it: its help, its mistakes, and the one JSON form.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/report/program.h"
#include "bench/run/forced_samples.h"
#include "core/base/file.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

const std::set<std::string> kKeys = {"bench", "system",   "version", "case", "metric",
                                     "unit",  "median",   "min",     "max",  "runs",
                                     "limit", "settings", "machine"};

// What a run of `modes` is, behind those.
const std::set<std::string> kModeKeys = {
    "workload",         "mode",          "seconds",       "reward",
    "staleness_mean",   "staleness_max", "mismatch_max",  "loss_tokens_per_s",
    "compared_samples", "idle",          "decomposition", "trainer_seconds"};

// What a row of `simulate` is, behind those.
const std::set<std::string> kSimulateKeys = {"row", "published", "bound", "verdict"};

// The smallest work that each takes.
std::map<std::string, std::string> shortest_runs(const TemporaryDirectory& folder) {
  return {
      {"kernels", "--milliseconds 0 --only '[64, 64]'"},
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
      {"gateway",
       fmt::format("--model {0}/tests/data/models/stories260K --tokenizer "
                   "{0}/tests/data/tokenizers/minimind --calls 20 --sessions 8 --turns 2 "
                   "--idle 64 --runs 2",
                   TAILRACE_SOURCE_DIR)},
      {"env", "--steps 100 --sessions 3 --rounds 1"},
      {"transfer", "--mib 1 --pairs 1 --rate-mbit 1000 --delay-ms 0"},
      {"weights", "--quick"},
      {"installs", fmt::format("--quick --folder {}", (folder / "installs").string())},
      {"rl-step", "--steps 1 --warmup 0"},
      {"dpo-step", "--pairs 2 --prompt 9 --completion 5 --steps 1 --warmup 1"},
      {"scheduler", "--workers 4 --members 64 --snapshots 64 --events 500 --runs 1"},
      {"plan", fmt::format("--cases quickstart --steps 1 --configs {}/configs --out {}",
                           TAILRACE_SOURCE_DIR, (folder / "plan").string())},
      {"simulate", "--only theory"},
      {"modes", fmt::format("--workloads length_tailed --modes partial --steps 2 --out {} "
                            "sft.demonstrations=20 env.settings.latency_ms=1",
                            (folder / "modes").string())},
      {"algorithms",
       fmt::format("--only grpo,lite_ppo --tasks single_turn --steps 2 --seeds 2 --out {0} "
                   "--plot {0}.svg sft.demonstrations=20 eval.prompts=8",
                   (folder / "algorithms").string())},
      {"preferences", fmt::format("--seeds 1 --steps 2 --sampling-steps 2 --episodes 8 --out {}",
                                  (folder / "preferences").string())},
      {"distillation", fmt::format("--seeds 2 --steps 2 --teacher-steps 1 "
                                   "--teacher-demonstrations 20 --episodes 8 --out {}",
                                   (folder / "distillation").string())},
      {"reward", fmt::format("--arms tis_2 --seeds 2 --steps 2 --out {} sft.demonstrations=20 "
                             "eval.prompts=8",
                             (folder / "reward").string())},
      {"changes", fmt::format("--config {}/configs/quickstart.yaml --rate 1e-4 --steps 1 --out {} "
                              "--set sft.demonstrations=100",
                              TAILRACE_SOURCE_DIR, (folder / "changes").string())},
      {"seeds", fmt::format("{}/configs/quickstart.yaml --seeds 1 --out {} run.steps=1 "
                            "sft.demonstrations=100 eval.prompts=8",
                            TAILRACE_SOURCE_DIR, (folder / "seeds").string())}};
}

// What a verdict of `algorithms` is, behind those.
const std::set<std::string> kAlgorithmKeys = {"verdict", "why"};

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
      if (name == "algorithms" && row.contains("verdict"))
        expected.insert(kAlgorithmKeys.begin(), kAlgorithmKeys.end());
      if (name == "simulate") expected.insert(kSimulateKeys.begin(), kSimulateKeys.end());
      EXPECT_EQ(keys, expected) << line;
      EXPECT_EQ(name == "modes" && row["unit"] == "s" && row["metric"] != "steps" &&
                    row["metric"] != "trainer",
                row.contains("workload"))
          << line;
      EXPECT_EQ(row["bench"], name);
      EXPECT_LE(row["min"], row["median"]) << line;
      EXPECT_LE(row["median"], row["max"]) << line;
      EXPECT_GE(row["runs"], 1) << line;
    }
  }
}

TEST(Benches, MeasureTheModelOfAFolder) {
  const std::string model =
      fmt::format(" --json --model {}/tests/data/models/stories260K", TAILRACE_SOURCE_DIR);
  for (const std::string words :
       {"engine --batch 2 --runs 1 --prompt 9 --new 5",
        "train-step --sequences 2 --length 16 --steps 1",
        "rl-step --steps 1 --warmup 0 --prompt 9 --new 5 --full-length",
        "dpo-step --steps 1 --warmup 1 --pairs 2 --prompt 9 --completion 5 --recompute",
        "exactness --threads 1 --pairs 1 --milliseconds 0 --patience 0 --only 'qkv [1,'"}) {
    const auto result = run_binary("bench " + words + model);
    ASSERT_EQ(result.exit_code, 0) << words << ": " << result.err;
    for (const std::string& line : lines_of(result.out)) {
      const json row = json::parse(line);
      EXPECT_EQ(row["settings"]["geometry"], "stories260K");
      if (row["metric"] == "new tokens a sample") {
        EXPECT_EQ(row["min"], 5);
      }
    }
  }
  const auto both = run_binary("bench engine --geometry tiny" + model);
  EXPECT_EQ(both.exit_code, 2) << both.err;
}

TEST(Benches, ExactnessMeasuresProductsOfPairsWhereThereAreSome) {
  TemporaryDirectory folder;
  const auto result =
      run_binary("bench exactness --json --dtype bf16 " + shortest_runs(folder).at("exactness"));
  if (result.exit_code != 0) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find("--dtype bf16 needs products in pairs (AVX512_BF16)"),
              std::string::npos)
        << result.err;
    return;
  }
  for (const std::string& line : lines_of(result.out))
    EXPECT_EQ(json::parse(line)["settings"]["dtype"], "bf16") << line;
}

TEST(Benches, KernelsSayWhatTheMachineCanDo) {
  const auto result = run_binary("bench kernels --json --milliseconds 0 --only machine");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, double> rows;
  for (const std::string& line : lines_of(result.out)) {
    const json row = json::parse(line);
    rows[row["metric"]] = row["median"];
  }
  EXPECT_GT(rows["multiply-add"], 0);
  EXPECT_GT(rows["read of memory"], 0);
  EXPECT_GT(rows["copy of memory"], 0);
}

TEST(Benches, ModesForceLengthsAndRecordThem) {
  TemporaryDirectory folder;
  const std::string shortest = shortest_runs(folder).at("modes");
  const auto result = run_binary("bench modes --json " + shortest);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  double compared = 0;
  for (const std::string& line : lines_of(result.out)) {
    const json row = json::parse(line);
    EXPECT_EQ(row["settings"]["lengths"], "forced");
    if (row["metric"] == "mismatch") {
      EXPECT_EQ(row["max"], 0) << line;
    }
    if (!row.contains("workload")) continue;
    if (row["mode"] != "sync") compared += row["compared_samples"].get<double>();
    EXPECT_EQ(row["decomposition"].size(), 4u);
    for (const auto& [name, share] : row["decomposition"].items()) {
      EXPECT_GE(share, 0) << name;
      EXPECT_LE(share, 1) << name;
    }
    EXPECT_GT(row["trainer_seconds"]["train"], 0);
    EXPECT_GT(row["trainer_seconds"]["hand_over_to_publication"], row["trainer_seconds"]["train"]);
  }
  EXPECT_GE(compared, 64) << "samples of sync that partial has as well";
  const std::filesystem::path file = folder / "modes/length_tailed-0.episodes.jsonl";
  EXPECT_GE(std::ssize(read_recorded_episodes(file)), 2 * 64);
  // The first samples, as the run itself has them.
  const auto of_sync = read_recorded_episodes(folder / "modes/length_tailed-sync-0");
  const auto all = read_recorded_episodes(file);
  for (const auto& [member, episode] : of_sync) EXPECT_EQ(all.at(member), episode);
}

// Where weights are learned, a sample is not the same in two modes, and the check would say so.
// Whether the predictions are good is for a quiet machine to say.
TEST(Benches, SimulatePredictsTheRunsOfModes) {
  TemporaryDirectory folder;
  const std::string runs = (folder / "modes").string();
  const auto modes = run_binary(
      fmt::format("bench modes --workloads length_tailed --modes partial --steps 3 --runs 3 "
                  "--out {} sft.demonstrations=20 env.settings.latency_ms=1",
                  runs));
  ASSERT_EQ(modes.exit_code, 0) << modes.err;
  const std::string against = "bench simulate --against-modes " + runs;
  const auto table = run_binary(against);
  EXPECT_LE(table.exit_code, 1) << table.err;
  const std::vector<std::string> lines = lines_of(table.out);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back(), fmt::format("{} of 1 modes within 10 %", table.exit_code == 0 ? 1 : 0));
  int rows = 0;
  for (const std::string& line : lines_of(run_binary(against + " --json").out)) {
    const json row = json::parse(line);
    EXPECT_EQ(row["runs"], 3);
    if (row["unit"] != "versions") {
      EXPECT_GT(row["min"], 0) << line;
    }
    ++rows;
  }
  EXPECT_EQ(rows, 2 * 6) << "sync and partial";
  // Mistakes are said before anything is fitted.
  std::filesystem::remove_all(fmt::format("{}/length_tailed-partial-2", runs));
  const auto lacks = run_binary(against);
  EXPECT_EQ(lacks.exit_code, 2);
  EXPECT_NE(lacks.err.find("length_tailed, seed 2, there must be runs of sync and of another mode"),
            std::string::npos)
      << lacks.err;
  std::filesystem::remove_all(fmt::format("{}/length_tailed-sync-2", runs));
  EXPECT_NE(run_binary(against).err.find("has 2 seeds, and 3 are compared"), std::string::npos);
  const auto none = run_binary("bench simulate --against-modes " + (folder / "none").string());
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("has no runs; make them by bench modes --runs 3"), std::string::npos);
}

// Simulated seconds depend on no machine, so what the newest page says is what comes out: a change
// of the law that moves a row makes the page anew.
TEST(Benches, SimulateIsWithinAsManyBoundsAsItsPageSays) {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(TAILRACE_SOURCE_DIR) / "bench/results"))
    if (entry.path().filename().string().starts_with("simulate-"))
      newest = std::max(newest, entry.path());
  ASSERT_FALSE(newest.empty());
  const std::vector<std::string> page = lines_of(read_file(newest).value());
  const auto claim = std::ranges::find_if(page, [](const std::string& line) {
    return line.ends_with("gated rows within their bound");
  });
  ASSERT_NE(claim, page.end()) << newest;
  const auto ran = run_binary("bench simulate");
  EXPECT_LE(ran.exit_code, 1) << ran.err;
  const std::vector<std::string> lines = lines_of(ran.out);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back(), *claim) << "run 'tailrace bench simulate' and write the page anew";
}

// A case is named after what its events hold, so that a speed is not of quieter traffic.
TEST(Benches, SchedulerRefusesBusyTrafficWithoutItsTroubles) {
  TemporaryDirectory folder;
  const auto busy = run_binary("bench scheduler " + shortest_runs(folder).at("scheduler"));
  EXPECT_NE(busy.out.find("4 workers, 64 members, with losses, reconnects and evaluations"),
            std::string::npos)
      << busy.out;
  const auto events = [](int count) {
    return run_binary(fmt::format(
        "bench scheduler --workers 4 --members 64 --snapshots 64 --events {} --runs 1", count));
  };
  const auto refused = events(300);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("the recorded events hold no evaluations; give more --events"),
            std::string::npos)
      << refused.err;
  EXPECT_NE(events(1).err.find("the recorded events hold no reconnects"), std::string::npos);
}

TEST(Benches, ForcedSamplesNameTheOneThatDiffers) {
  TemporaryDirectory folder;
  const std::string shortest = shortest_runs(folder).at("modes");
  ASSERT_EQ(run_binary("bench modes --json --learn " + shortest).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "modes/length_tailed-0.episodes.jsonl"));
  ForcedSamples samples;
  samples.add("sync", folder / "modes/length_tailed-sync-0");
  try {
    samples.add("partial", folder / "modes/length_tailed-partial-0");
    ADD_FAILURE() << "lengths of learned weights are taken as forced";
  } catch (const WrongResult& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("sample policy=0 dataset=0 epoch=0 prompt="), 0u) << message;
    EXPECT_NE(message.find(" is not forced: it has "), std::string::npos) << message;
  }
  const auto refused = run_binary("bench modes optim.lr=0.1 " + shortest);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err,
            "error: optim.lr has no effect where the learning rate is 0; give --learn as well\n");
}

// `--quick` is the same with other numbers. An algorithm that is refused is a row and no error.
TEST(Benches, AlgorithmsSayWhoLearnsAndWhoIsRefused) {
  TemporaryDirectory folder;
  const std::string out = (folder / "algorithms").string();
  const auto result = run_binary(fmt::format(
      "bench algorithms --json --only grpo,topr --tasks single_turn --steps 1 --seeds 1 --out {0} "
      "--plot {0}.svg sft.demonstrations=20 eval.prompts=8 algo.correction.kind=tis",
      out));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, json> verdicts;
  for (const std::string& line : lines_of(result.out)) {
    const json row = json::parse(line);
    if (row.contains("verdict")) verdicts[row["case"]] = row;
  }
  ASSERT_EQ(verdicts.size(), 2u);
  // Eight episodes prove nothing.
  EXPECT_EQ(verdicts["single_turn, grpo"]["verdict"], "does not beat the start");
  EXPECT_NE(verdicts["single_turn, grpo"]["why"], "");
  EXPECT_EQ(verdicts["single_turn, topr"]["verdict"], "refused");
  const std::string why = verdicts["single_turn, topr"]["why"];
  EXPECT_EQ(why.find("override algo.correction.kind=tis: "), 0u) << why;
  const auto plot = read_file(out + ".svg");
  ASSERT_TRUE(plot.ok());
  EXPECT_NE(plot.value().find(">grpo</text>"), std::string::npos) << plot.value();
  const auto refused = run_binary("bench algorithms algo.name=grpo --out " + out);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err,
            "error: algo.name is for the bench to set; see --steps, --seeds, --first and --only\n");
}

TEST(Benches, SeedsDrawALineForEach) {
  TemporaryDirectory folder;
  const std::string out = (folder / "seeds").string();
  const auto result =
      run_binary(fmt::format("bench seeds {}/configs/quickstart.yaml --seeds 2 --first 5 --out {} "
                             "--plot {}.svg run.steps=1 sft.demonstrations=20 eval.prompts=8",
                             TAILRACE_SOURCE_DIR, out, out));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plot = read_file(out + ".svg");
  ASSERT_TRUE(plot.ok());
  for (const char* text :
       {"success, held-out", "success, training", ">seed 5</text>", ">seed 6</text>"})
    EXPECT_NE(plot.value().find(text), std::string::npos) << text;
  // Told before the first run.
  const auto refused =
      run_binary(fmt::format("bench seeds {}/configs/quickstart.yaml --plot {} --out {}-2",
                             TAILRACE_SOURCE_DIR, folder.path().string(), out));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("is a folder; name a file in it"), std::string::npos) << refused.err;
}

TEST(Benches, SeedsGoOnWithRunsThatAreThere) {
  TemporaryDirectory folder;
  const std::string command = fmt::format(
      "bench seeds {}/configs/quickstart.yaml --json --seeds 1 --out {} "
      "sft.demonstrations=20 eval.prompts=8 run.steps=",
      TAILRACE_SOURCE_DIR, (folder / "seeds").string());
  const auto metrics_of = [](const std::string& rows) {
    std::set<std::string> metrics;
    for (const std::string& line : lines_of(rows)) metrics.insert(json::parse(line)["metric"]);
    return metrics;
  };
  const auto first = run_binary(command + "1");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(metrics_of(first.out).contains("run"));
  const auto refused = run_binary(command + "1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("is there already"), std::string::npos) << refused.err;
  const auto resumed = run_binary(command + "2 --resume");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_FALSE(metrics_of(resumed.out).contains("run"));  // it was not timed from its start
  EXPECT_TRUE(metrics_of(resumed.out).contains("success after RL"));
  const auto rows = read_file(folder / "seeds" / "seed-0" / "metrics.jsonl");
  ASSERT_TRUE(rows.ok());
  EXPECT_NE(rows.value().find("\"step\":2"), std::string::npos);
  const auto other = run_binary(command + "2 --resume optim.lr=0.5");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("holds a run with another config"), std::string::npos) << other.err;
}

TEST(Benches, RewardComparesTheModesToo) {
  TemporaryDirectory folder;
  const std::string command = fmt::format(
      "bench reward --json --modes --workloads latency_injected --seeds 2 --steps 3 --out {} "
      "eval.prompts=16 env.settings.latency_ms=1 --arms ",
      (folder / "reward").string());
  const auto result = run_binary(command + "async_1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> units;
  for (const std::string& line : lines_of(result.out)) {
    const json row = json::parse(line);
    if (row["case"] == "latency_injected, async_1") units.insert(row["unit"].get<std::string>());
  }
  for (const char* unit : {"reward", "1/step", "1/s", "versions"})
    EXPECT_EQ(units.count(unit), 1u) << unit;
  const auto other = run_binary(command + "tis_2");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_EQ(other.err.find("error: --arms: tis_2 is not among sync, "), 0u) << other.err;
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
