// `tailrace status` of a run directory that holds a journal and nothing else.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "scheduler/decide/decide.h"
#include "scheduler/store/journal.h"
#include "tests/cli/run_binary.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using nlohmann::json;

// A worker of launch says no place, one that joined says where it is: text and JSON agree.
TEST(Status, SaysWhereAWorkerIs) {
  const TemporaryDirectory folder;
  const RunPaths paths{folder.path()};
  scheduler::Config config;
  config.datasets = {scheduler::DatasetConfig{.prompts_per_step = 1}};
  scheduler::State state(config);
  for (const scheduler::WorkerUp& up :
       {scheduler::WorkerUp{.worker = "reward-0", .role = Role::kReward},
        scheduler::WorkerUp{.worker = "reward-1",
        .role = Role::kReward,
        .joined = true,
        .site = {.cluster = "west", .host = "gpu-7"}},
        scheduler::WorkerUp{.worker = "rollout-0",
        .joined = true,
        .site = {.pool = "far", .cluster = "west", .host = "gpu-8"}}})
    (void)scheduler::decide(state, up, Time(1));
  ASSERT_TRUE(scheduler::Journal::open(paths.journal(), state, {}));

  const std::string run = folder.path().string();
  const std::string text = run_binary("status " + run).out;
  EXPECT_NE(text.find("reward-0: 0 of 1 slots\n"), std::string::npos) << text;
  EXPECT_NE(text.find("reward-1: joined, cluster west, host gpu-7, 0 of 1 slots\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rollout-0: joined, pool far, cluster west, host gpu-8, "), std::string::npos)
      << text;
  const json workers = json::parse(run_binary("status --json " + run).out).at("workers");
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_FALSE(workers[0].contains("cluster") || workers[0].contains("host")) << workers[0];
  for (size_t i : {1, 2}) EXPECT_EQ(workers[i].at("cluster"), "west");
  EXPECT_EQ(workers[1].at("host"), "gpu-7");
  EXPECT_EQ(workers[2].at("host"), "gpu-8");
}

// Weights that take long are on their way, or cannot come.
TEST(Status, SaysWhatOfAVersionHasArrived) {
  scheduler::Config config;
  config.datasets = {scheduler::DatasetConfig{.prompts_per_step = 1}};
  const Digest root(32, 'a');
  for (const bool fails : {false, true}) {
    const TemporaryDirectory folder;
    const RunPaths paths{folder.path()};
    scheduler::State state(config);
    (void)scheduler::decide(state, scheduler::WorkerUp{.worker = "rollout-0", .joined = true},
                            Time(1));
    (void)scheduler::decide(
        state, scheduler::WorkerUp{.worker = "trainer-0", .role = Role::kTrainer}, Time(2));
    (void)scheduler::decide(state, scheduler::RolledBack{"trainer-0", 0, -1, "", ""}, Time(2));
    (void)scheduler::decide(
        state, scheduler::Published{"trainer-0", 0, 0, root, "p0-v0.json", root}, Time(3));
    ASSERT_TRUE(state.workers.at("rollout-0").install) << "it is asked to stage";
    (void)scheduler::decide(
        state, scheduler::StageProgress{"rollout-0", 0, 0, root, 3 << 20, 12 << 20}, Time(4));
    if (fails)
      (void)scheduler::decide(state,
                              scheduler::InstallFailed{"rollout-0", 0, 0, root, "the link is cut",
                                                       InstallCause::kSource},
                              Time(5));
    ASSERT_TRUE(scheduler::Journal::open(paths.journal(), state, {}));
    const std::string run = folder.path().string(), text = run_binary("status " + run).out;
    const std::string words = fails
                                  ? "without weights, could not get weights, 1 time in a row\n"
                                  : "without weights, installs version 0 (3.0 MiB of it arrived)\n";
    EXPECT_NE(text.find(words), std::string::npos) << text;
    const json workers = json::parse(run_binary("status --json " + run).out).at("workers");
    const json& worker = workers.at(0);
    EXPECT_EQ(worker.contains("failed_fetches"), fails) << worker;
    if (fails)
      EXPECT_EQ(worker.at("failed_fetches"), 1);
    else
      EXPECT_EQ(worker.at("arrived_bytes"), 3 << 20);
  }
}

// A run that trains on supervised rows alone has no steps: its updates say where it stands.
TEST(Status, TellsSupervisedUpdates) {
  const TemporaryDirectory folder;
  const RunPaths paths{folder.path()};
  scheduler::State state{scheduler::Config()};
  state.policies.begin()->second.stage = {.number = 1, .of = 1, .name = "sft"};
  ASSERT_TRUE(scheduler::Journal::open(paths.journal(), state, {}));
  folder.write("config.yaml", "sft: {data: rows.jsonl}\nmodel: {path: somewhere}\n");
  const std::string run = folder.path().string();
  std::string text = run_binary("status " + run).out;
  EXPECT_NE(text.find("updates   none yet, newest checkpoint none\n"), std::string::npos) << text;

  std::string rows;
  for (const MetricsRow& row :
       {MetricsRow{
            .step = 0, .version = -1, .values = {{"sft/eval_loss", 3.5}, {"sft/updates", 2241}}},
        MetricsRow{
            .step = 132, .version = -1, .values = {{"sft/loss", 1.726}, {"sft/updates", 2241}}}})
    rows += format_metrics_row(row) + "\n";
  folder.write("metrics.jsonl", rows);
  std::filesystem::create_directories(paths.stage_checkpoints("sft") / "step_000100");
  text = run_binary("status " + run).out;
  EXPECT_NE(text.find("updates   132 of 2241, loss 1.726, held-out loss 3.500, newest checkpoint "
                      "checkpoints/sft/step_000100\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("step 0"), std::string::npos) << text;
  EXPECT_EQ(text.find("version 0"), std::string::npos) << text;
  EXPECT_NE(text.find("works on supervised update 133"), std::string::npos) << text;
  const json facts = json::parse(run_binary("status --json " + run).out).at("supervised");
  EXPECT_EQ(facts, json::parse(R"({"stage": {"number": 1, "of": 1, "name": "sft"}, "kind": "sft",
                                   "updates": 132, "of": 2241, "loss": 1.726, "eval_loss": 3.5,
                                   "checkpoint": "checkpoints/sft/step_000100"})"));
}

}  // namespace
}  // namespace tailrace
