// `tailrace plan` as a person meets it: it measures this machine, so its numbers are compared with
// each other and with what they must be made of.
#include <filesystem>
#include <map>
#include <set>
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

TEST(Plan, SaysWhatAStepTakesAndWhichModeIsBest) {
  const auto result = run_binary("plan --json " + kConfig);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_GT(part(plan.at("step"), "rollout"), 0);
  EXPECT_GT(part(plan.at("step"), "train"), 0);
  EXPECT_EQ(plan.at("steps"), 80);
  for (const char* name : {"prefill_tokens_per_s", "publish", "install", "kv_tokens"})
    EXPECT_GT(part(plan.at("machine"), name), 0) << name;
  EXPECT_GT(part(plan.at("machine"), "payload_bytes"), 1e5);
  EXPECT_NE(plan.at("episodes").get<std::string>().find("random weights"), std::string::npos);
  // Where the time goes: shares of one.
  double sum = 0;
  for (const auto& [use, share] : plan.at("simulated").at("rollout").items())
    sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-6);
  // Streaming has one update a step, and the config two.
  std::map<std::string, json> modes;
  for (const json& mode : plan.at("modes")) modes[mode.at("mode")] = mode;
  ASSERT_EQ(modes.size(), 4u) << result.out;
  EXPECT_EQ(modes.at("sync").at("staleness"), 0);
  EXPECT_GT(part(modes.at("async"), "staleness"), 0);
  for (const auto& [name, mode] : modes)
    EXPECT_LE(part(plan.at("best"), "eta_seconds"), part(mode, "eta_seconds") / 0.95) << name;
  // The memory is that of a dry run.
  EXPECT_GT(plan.at("memory").at("total_bytes").get<int64_t>(), int64_t{100} << 20);
}

TEST(Plan, PlaysTheEpisodesOfARunAgain) {
  TemporaryDirectory folder;
  const std::string run = (folder / "run").string();
  const auto launched = run_binary("launch " + kConfig + " --run-dir " + run +
                                   " run.steps=2 sft.demonstrations=50 eval.prompts=8");
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  const auto result = run_binary("plan --json " + kConfig + " run.steps=2 --like " + run);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan.at("episodes"), "those of " + run);
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
  EXPECT_NEAR(part(plan.at("simulated").at("response_tokens"), "mean"), tokens / 2, 1e-6);
}

TEST(Plan, RefusesARunWithoutEpisodes) {
  TemporaryDirectory folder;
  const auto result = run_binary("plan " + kConfig + " --like " + folder.path().string());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("is no run directory"), std::string::npos) << result.err;
}

constexpr const char* kCluster =
    "run: {steps: 20}\n"
    "rollout: {prompts_per_step: 256, group_size: 4, max_response_tokens: 2000}\n";
constexpr const char* kClusterHardware =
    "workers: 3\n"
    "hardware: [{name: gpu, price_per_hour: 3600}, {name: old, tokens_per_s: 400, step_ms: 20}]\n"
    "trainer: {workers: 13, update_seconds: 0.1, publish_seconds: 0.1}\n"
    "episodes: {prompt_tokens: 100, response_tokens: 500}\n";

// Nothing is measured, so that the same numbers come each time.
TEST(Plan, NamesModeAndSplitOnHardwareOfAFile) {
  TemporaryDirectory folder;
  folder.write("a.yaml", kCluster);
  folder.write("h.yaml", kClusterHardware);
  const auto planned = [&](const std::string& arguments) {
    return run_binary("plan a.yaml --hardware h.yaml " + arguments, "", folder.path().string());
  };
  const auto result = planned("--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, planned("--json").out);
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan.at("modes").size(), 5u) << result.out;
  EXPECT_FALSE(plan.contains("machine"));
  ASSERT_GT(plan.at("splits").size(), 3u);
  for (const json& split : plan.at("splits")) {
    EXPECT_EQ(part(split, "rollout_workers") + part(split, "trainer_workers"), 16);
    EXPECT_LE(part(plan.at("best"), "eta_seconds"), part(split, "eta_seconds") / 0.95);
    // A device costs one a second.
    EXPECT_NEAR(part(split, "cost"), 16 * part(split, "eta_seconds"), 0.5 * part(split, "cost"));
  }
  // Thirteen trainers are too many for such short answers.
  EXPECT_LT(part(plan.at("best"), "trainer_workers"), 13);
  // As it is it has several trainers, which nothing runs; with one it can.
  EXPECT_EQ(plan.at("not_today").size(), 1u);
  EXPECT_NE(planned("").out.find("The best that it can run: "), std::string::npos);
  const json old = json::parse(planned("hardware.rollout_hardware=old --json").out);
  EXPECT_GT(part(old, "seconds"), 2 * part(plan, "seconds"));
  const auto text = planned("");
  EXPECT_NE(text.out.find("\nbest       "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(", cost "), std::string::npos) << text.out;
  EXPECT_NE(planned("hardware.rollout_hardware=gpv").err.find("Try gpu"), std::string::npos);
}

// Each card that comes along, for a policy that fits on all.
TEST(Plan, SaysOnEachCardHowLongAndHowMuch) {
  const std::string listed = run_binary("plan --hardware list").out;
  int cards = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TAILRACE_SOURCE_DIR "/configs/hardware")) {
    if (entry.path().extension() != ".yaml") continue;
    ++cards;
    const std::string name = entry.path().stem();
    EXPECT_NE(listed.find("\n" + name + " "), std::string::npos) << listed;
    const auto result = run_binary(
        "plan " + kConfig + " run.steps=4 rollout.workers=1 --price 2 --json --hardware " + name);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json plan = json::parse(result.out);
    EXPECT_TRUE(plan.at("fit").at("fits").get<bool>()) << result.out;
    EXPECT_NEAR(part(plan.at("best"), "cost"), 2 * part(plan.at("best"), "device_hours"), 1e-6);
    // By turns on one of the two cards: no faster, and no more than half of the cost.
    EXPECT_NEAR(part(plan.at("in_turn"), "cost"), 2 * part(plan.at("in_turn"), "device_hours"),
                1e-6);
    EXPECT_LE(part(plan.at("in_turn"), "device_hours"),
              0.51 * part(plan.at("modes").at(0), "device_hours"))
        << name;
    EXPECT_TRUE(plan.at("not_today").empty()) << result.out;
  }
  EXPECT_GE(cards, 5);
}

TEST(Plan, QuickMeasuresNothing) {
  const json plan = json::parse(run_binary("plan --quick --json " + kConfig).out);
  EXPECT_GT(plan.at("memory").at("total_bytes").get<int64_t>(), int64_t{100} << 20);
  EXPECT_FALSE(plan.contains("best"));
  const json on_card =
      json::parse(run_binary("plan --quick --json --hardware h200 " + kConfig).out);
  EXPECT_TRUE(on_card.at("fit").at("fits").get<bool>());
}

// Of a policy its config.json is enough.
TEST(Plan, SaysWhatDoesNotFitAndWhatWould) {
  TemporaryDirectory folder;
  folder.write("model/config.json",
               R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",)"
               R"( "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,)"
               R"( "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,)"
               R"( "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000,)"
               R"( "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1,)"
               R"( "eos_token_id": 2})");
  const std::string run =
      "plan " TAILRACE_SOURCE_DIR "/configs/gsm8k.yaml model.path=" + (folder / "model").string() +
      " --hardware ";
  const auto small = run_binary(run + "rtx-4090");
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_NE(small.out.find("\nfits not   the trainer takes "), std::string::npos) << small.out;
  EXPECT_NE(small.out.find(" of the 23.9 GiB of rtx-4090"), std::string::npos) << small.out;
  EXPECT_NE(small.out.find("\nwould fit  "), std::string::npos) << small.out;
  EXPECT_EQ(small.out.find("best "), std::string::npos) << small.out;
  const json fit = json::parse(run_binary(run + "rtx-4090 --json").out).at("fit");
  EXPECT_FALSE(fit.at("fits").get<bool>());
  EXPECT_FALSE(fit.at("would_fit").empty());
  // On a card that is large enough.
  const auto large = run_binary(run + "h200 hardware.h200.memory_gib=200 --quick");
  EXPECT_EQ(large.exit_code, 0) << large.err;
  EXPECT_NE(large.out.find("\nfits       the trainer takes "), std::string::npos) << large.out;
}

// An agent of the config is known there, and a mode of the command line is one of those compared.
TEST(Plan, MeansOnACardTheRunThatALaunchMeans) {
  const auto agent = run_binary("plan " + std::string(TAILRACE_SOURCE_DIR) +
                                "/configs/agent.yaml --hardware h200 --quick --json");
  ASSERT_EQ(agent.exit_code, 0) << agent.err;
  EXPECT_EQ(json::parse(agent.out).at("fit").at("fits"), true) << agent.out;
  const auto result =
      run_binary("plan --json --hardware h200 " + kConfig + " scheduler.mode=async run.steps=3");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> modes;
  const json plan = json::parse(result.out);
  for (const json& mode : plan.at("modes")) modes.insert(mode.at("mode"));
  EXPECT_EQ(modes, (std::set<std::string>{"sync", "tail_batching", "partial", "async"}));
}

TEST(Plan, PlacesAMistakeOfTheConfig) {
  const auto result = run_binary("plan " + kConfig + " rollout.workres=1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("rollout.workers"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tailrace
