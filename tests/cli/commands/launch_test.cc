// `tailrace launch` as a person uses it, end to end over processes, with faults.
#include <array>
#include <numeric>

#include <nlohmann/json.hpp>

#include "cli/roles/roles.h"
#include "core/base/random.h"
#include "tests/cli/commands/launch_fixture.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

TEST_F(LaunchTest, RunsToItsEndAndSaysSo) {
  start_run();
  expect_done();
  EXPECT_NE(output().find("tiny: success "), std::string::npos) << output();
  EXPECT_NE(output().find("(held-out, 8 episodes), "), std::string::npos) << output();
  expect_each_step_once();
  EXPECT_TRUE(fs::exists(paths().report()));
  EXPECT_FALSE(fs::exists(paths().root / "endpoint"));
  EXPECT_TRUE(processes_with({"worker", paths().root.string()}).empty());
  // Again: nothing is left to do.
  const std::string digest = final_digest();
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), digest);
  expect_each_step_once();
  EXPECT_NE(output().find("The run was complete before: 16 steps. Raise run.steps to go on: "),
            std::string::npos)
      << output();
  // More of it.
  start(command({"--run-dir", paths().root.string(), "run.steps=18"}));
  expect_done();
  EXPECT_EQ(output().find("was complete before"), std::string::npos) << output();
  expect_each_step_once("run", 18);
}

// From the key to the loss: the sets are kept, travel, and are used.
TEST_F(LaunchTest, TruncatedSamplingIsNoMismatchWhereItsSetsAreKept) {
  const std::vector<std::string> truncated = {"optim.lr=0", "run.steps=2",
                                              "rollout.sampling.top_k=3"};
  for (const bool keep : {true, false}) {
    const std::string run = keep ? "run" : "other";
    std::vector<std::string> arguments = truncated;
    if (keep) arguments.push_back("algo.sampling_mask=keep");
    start_run(run, arguments);
    expect_done();
    const auto rows = read_metrics(paths(run).metrics());
    ASSERT_TRUE(rows) << rows.failure().message;
    int updates = 0;
    for (const MetricsRow& row : rows.value()) {
      const double* mean_ratio = row.find("mismatch/mean_ratio");
      if (mean_ratio == nullptr) continue;
      ++updates;
      EXPECT_GT(*row.find("rollout/cut_mass"), 0.01);
      if (keep) {
        EXPECT_EQ(*mean_ratio, 1);
        EXPECT_EQ(*row.find("mismatch/kl"), 0);
        EXPECT_EQ(*row.find("policy/ratio_min"), 1);
        EXPECT_EQ(*row.find("policy/ratio_max"), 1);
      } else {
        EXPECT_LT(*mean_ratio, 0.99);
        EXPECT_GT(*row.find("mismatch/kl"), 0.01);
      }
    }
    EXPECT_GE(updates, 1);
  }
}

// From the key to the pass that trains: experts are recorded, travel, and are taken.
TEST_F(LaunchTest, ReplayedExpertsAreThoseThatTheTrainerWouldChooseInTheSameVersion) {
  const std::vector<std::string> sparse = {"run.steps=3", "model.create.experts=4"};
  const auto run_with = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = sparse;
    arguments.insert(arguments.end(), more.begin(), more.end());
    start_run(run, arguments);
    expect_done();
    std::vector<double> moved;
    const auto rows = read_metrics(paths(run).metrics());
    EXPECT_TRUE(rows);
    for (const MetricsRow& row : rows.value())
      if (const double* share = row.find("experts/route_mismatch_frac")) moved.push_back(*share);
    return moved;
  };
  EXPECT_TRUE(run_with("other", {}).empty());
  const std::vector<double> moved = run_with("run", {"algo.router_replay=replay"});
  EXPECT_GE(moved.size(), 1u);
  EXPECT_EQ(moved, std::vector<double>(moved.size(), 0.0));
  EXPECT_EQ(final_digest("run", 3), final_digest("other", 3));
  // Of older weights some are others.
  fs::remove_all(folder_ / "other");
  const std::vector<double> stale = run_with(
      "other",
      {"algo.router_replay=replay", "scheduler.mode=async", "scheduler.ahead=1", "optim.lr=0.01"});
  EXPECT_GT(std::accumulate(stale.begin(), stale.end(), 0.0), 0);
}

// Step n starts from version n - 1 and publishes version n, wherever a person reads it.
TEST_F(LaunchTest, TheTerminalTheFilesAndTheReportCountStepsAlike) {
  start_run("run", {"run.steps=3"});
  expect_done();
  EXPECT_EQ(output().find("step 0/3"), std::string::npos) << output();
  for (const char* step : {"step 1/3  ", "step 2/3  ", "step 3/3  ", "held-out at step 3:"})
    EXPECT_NE(output().find(step), std::string::npos) << step << "\n" << output();
  expect_each_step_once("run", 3);
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows) << rows.failure().message;
  for (const MetricsRow& row : rows.value()) {
    if (row.find("reward/mean") != nullptr) {
      EXPECT_EQ(row.version, row.step - 1);
    }
    if (row.find("eval/episodes") != nullptr) {
      EXPECT_EQ(row.version, row.step);
    }
  }
  const std::string status = run_binary("status " + paths().root.string()).out;
  EXPECT_NE(status.find("3 of 3"), std::string::npos) << status;
  EXPECT_TRUE(fs::exists(paths().checkpoints() / checkpoint_name(3)));
  const json facts = json::parse(run_binary("status --json " + paths().root.string()).out);
  EXPECT_EQ(facts.at("state"), "complete");
  EXPECT_EQ(facts.at("step"), 3);
  EXPECT_EQ(facts.at("steps"), 3);
  EXPECT_EQ(facts.at("checkpoint"), 3);
  const std::string page = read_file(paths().report()).value();
  EXPECT_NE(page.find("<b>3</b><span>steps</span>"), std::string::npos);
  EXPECT_NE(page.find("After: step 3"), std::string::npos);
  // A sample says in words what its ids are.
  const std::string samples = read_file(paths().samples()).value();
  EXPECT_NE(samples.find("\"text\":[{\"role\":\"prompt\",\"text\":\"<s>"), std::string::npos)
      << samples.substr(0, 2000);
}

TEST_F(LaunchTest, GoesOnWhenNobodyReadsItsProgress) {
  std::string line = "set -o pipefail;";
  for (const auto& part :
       command({(folder_ / "tiny.yaml").string(), "--run-dir", paths().root.string()})) {
    line += " '" + part + "'";
  }
  start({"/bin/bash", "-c", line + " | head -1"});
  expect_done();
  EXPECT_EQ(std::ranges::count(output(), '\n'), 1) << output();
  expect_each_step_once();
}

TEST_F(LaunchTest, TheSameSeedGivesTheSameWeightsAlsoInOneProcess) {
  start_run("run", {"--in-process", "rollout.workers=1"});
  expect_done();
  EXPECT_EQ(final_digest(), undisturbed_digest());
}

class KilledRole : public LaunchTest, public testing::WithParamInterface<const char*> {};

TEST_P(KilledRole, IsReplacedAndChangesNothing) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  const std::string role = GetParam();
  const auto victims = workers(role);
  ASSERT_EQ(victims.size(), 1u);
  ::kill(victims[0], SIGKILL);
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_NE(output().find(role + "-0: killed by signal 9"), std::string::npos) << output();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

INSTANTIATE_TEST_SUITE_P(Roles, KilledRole,
                         testing::Values("scheduler", "rollout", "reward", "trainer"),
                         [](const auto& test) { return std::string(test.param); });

// Kills at random moments, the first ones during start-up and warm-up: the accounting and the
// weights stay.
class RandomKills : public LaunchTest, public testing::WithParamInterface<int> {};

TEST_P(RandomKills, ChangeNothing) {
  constexpr int kLongSteps = 60;
  const std::string steps = fmt::format("run.steps={}", kLongSteps);
  start_run("other", {steps});
  expect_done();
  start_run("run", {steps});
  Rng rng(static_cast<uint64_t>(GetParam()));
  int killed = 0;
  while (killed < 12) {  // three of each: below the supervisor's bound
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + rng.below(150)));
    if (!processes_with({"launch", paths().root.string()}).empty()) {
      const auto roles = std::to_array<const char*>({"scheduler", "trainer", "rollout", "reward"});
      const auto pids = workers(roles[killed % 4]);
      if (pids.empty()) continue;
      ::kill(pids[0], SIGKILL);
      ++killed;
      continue;
    }
    break;  // it was faster
  }
  expect_done();
  EXPECT_GE(killed, 4);
  EXPECT_EQ(final_digest("run", kLongSteps), final_digest("other", kLongSteps));
  expect_each_step_once("run", kLongSteps);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomKills, testing::Values(1, 2, 3));

TEST_F(LaunchTest, ASecondLaunchOnALiveRunIsRefused) {
  start_run();
  const pid_t trainer = stop_in_the_middle();
  std::optional<ChildProcess> first = std::move(launched_);
  const fs::path first_output = output_;
  continue_run();
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_NE(output().find("error: "), std::string::npos);
  EXPECT_NE(output().find(std::to_string(first->pid())), std::string::npos)
      << "names the owner: " << output();
  ::kill(trainer, SIGCONT);
  launched_.emplace(std::move(*first));
  output_ = first_output;
  expect_done();
  expect_each_step_once();
}

TEST_F(LaunchTest, CtrlCSavesAndTheRunGoesOnFromThere) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  launched_->send_signal(SIGINT);
  ASSERT_TRUE(wait_until([&] { return output().find("stopping") != std::string::npos; }))
      << output();
  ::kill(trainer, SIGCONT);
  EXPECT_EQ(finish().code, 130) << output();
  EXPECT_TRUE(processes_with({"worker", paths().root.string()}).empty());
  EXPECT_FALSE(fs::is_empty(paths().checkpoints()));
  EXPECT_NE(output().find("launch --run-dir"), std::string::npos) << output();
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

// Of a living run, and of one that is over.
TEST_F(LaunchTest, StatusTellsWhereARunStands) {
  const auto status = [&] {
    const auto result = run_binary("status " + paths().root.string());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  start_run();
  const pid_t trainer = stop_in_the_middle();
  std::string said;
  EXPECT_TRUE(wait_until([&] {
    if ((said = status()).find("the trainer works on step") != std::string::npos) return true;
    // It was stopped between a publication and its next question.
    ::kill(trainer, SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(trainer, SIGSTOP);
    return false;
  })) << said;
  EXPECT_NE(said.find("it goes on"), std::string::npos) << said;
  EXPECT_NE(said.find("rollout-1: 0 of "), std::string::npos) << said;
  EXPECT_NE(said.find(" trained, 4 at the trainer"), std::string::npos) << said;
  const std::string_view last_event = "last event was ";
  const size_t age = said.find(last_event);
  ASSERT_NE(age, std::string::npos) << said;
  // Not since the machine was started, which is where a steady clock counts from.
  EXPECT_LT(std::stod(said.substr(age + last_event.size())), 60) << said;
  const json facts = json::parse(run_binary("status --json " + paths().root.string()).out);
  EXPECT_EQ(facts.at("state"), "running");
  EXPECT_EQ(facts.at("about"), "it goes on");
  EXPECT_EQ(facts.at("steps"), kSteps);
  EXPECT_EQ(facts.at("prompts").at("at_trainer"), 4);
  EXPECT_EQ(facts.at("prompts").at("trained").get<int64_t>(), 4 * facts.at("step").get<int64_t>());
  ASSERT_EQ(facts.at("workers").size(), 4u) << facts;
  for (const json& worker : facts.at("workers")) {
    EXPECT_EQ(worker.at("connected"), true);
    EXPECT_EQ(worker.contains("slots"), worker.at("role") != "trainer");
  }
  EXPECT_EQ(facts.at("waits").at(0), fmt::format("version {}", facts.at("step").get<int64_t>()));
  EXPECT_LT(facts.at("quiet_seconds"), 60);
  ::kill(trainer, SIGCONT);
  expect_done();
  said = status();
  EXPECT_NE(said.find("complete: all steps are trained"), std::string::npos) << said;
  EXPECT_NE(said.find("16 of 16, newest checkpoint 16"), std::string::npos) << said;
  EXPECT_NE(said.find("64 trained"), std::string::npos) << said;
  EXPECT_TRUE(
      json::parse(run_binary("status --json " + paths().root.string()).out).at("waits").empty());
  const auto refused = run_binary("status " + (folder_ / "nowhere").string());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("has no journal"), std::string::npos) << refused.err;
}

TEST_F(LaunchTest, StatusSaysOfAKilledRunThatNobodyRunsIt) {
  start_run();
  stop_in_the_middle();
  launched_->send_signal(SIGKILL);
  finish();
  ASSERT_TRUE(wait_until([&] {
    return processes_with({"worker", paths().root.string()}).empty();
  }));
  const auto status = run_binary("status " + paths().root.string());
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_NE(status.out.find("no scheduler of it answers here"), std::string::npos) << status.out;
  EXPECT_NE(status.out.find("\nwaited    "), std::string::npos) << status.out;
  for (const char* present : {"it goes on", "\nwaits", "\nworkers"})
    EXPECT_EQ(status.out.find(present), std::string::npos) << status.out;
}

class FewFiles : public LaunchTest, public testing::WithParamInterface<const char*> {};

// ZeroMQ ends the process that has no file left.
TEST_P(FewFiles, AreRefusedBeforeTheRunBegins) {
  for (const int limit : {20, 30, 40}) {
    start({"/bin/sh", "-c",
           fmt::format("ulimit -n {}; exec {} launch {} --run-dir {} {}", limit, TAILRACE_BINARY,
                       (folder_ / "tiny.yaml").string(), paths().root.string(), GetParam())});
    expect_refused("open files");
    EXPECT_EQ(output().find("check failed"), std::string::npos) << output();
    EXPECT_NE(output().find("ulimit -n"), std::string::npos) << output();
  }
}

TEST_F(LaunchTest, TooFewThreadsForOneProcessAreRefusedBeforeTheRunBegins) {
  // KiB of address space: each has a stack in it.
  start({"/bin/sh", "-c",
         fmt::format("ulimit -v 150000; exec {} launch {} --run-dir {} --in-process",
                     TAILRACE_BINARY, (folder_ / "tiny.yaml").string(), paths().root.string())});
  expect_refused("threads in one process");
}

// One file more, and the run is done.
TEST_P(FewFiles, AreEnoughWhereTheyAreNotRefused) {
  for (int limit = 40; limit <= 120; limit += 4) {
    start({"/bin/sh", "-c",
           fmt::format("ulimit -n {}; exec {} launch {} --run-dir {} run.steps=1 {}", limit,
                       TAILRACE_BINARY, (folder_ / "tiny.yaml").string(), paths().root.string(),
                       GetParam())});
    const ExitStatus status = finish();
    if (status.ok()) return;
    ASSERT_EQ(status.code, 2) << describe(status) << "\n" << output();
  }
  ADD_FAILURE() << output();
}

INSTANTIATE_TEST_SUITE_P(Launch, FewFiles, testing::Values("", "--in-process"),
                         [](const auto& limit) {
                           return std::string_view(limit.param).empty() ? "Processes" : "Threads";
                         });

TEST_F(LaunchTest, ASecondCtrlCKills) {
  start_run();
  const pid_t trainer = stop_in_the_middle();
  launched_->send_signal(SIGINT);
  ASSERT_TRUE(wait_until([&] { return output().find("stopping") != std::string::npos; }))
      << output();
  launched_->send_signal(SIGINT);
  EXPECT_EQ(finish().code, 130) << output();
  EXPECT_NE(::kill(trainer, 0), 0);
}

TEST_F(LaunchTest, AKilledLaunchTakesItsWorkersAlongAndCanBeLaunchedAgain) {
  const std::string expected = undisturbed_digest();
  start_run();
  stop_in_the_middle();
  launched_->send_signal(SIGKILL);
  finish();
  ASSERT_TRUE(wait_until([&] {
    return processes_with({"worker", paths().root.string()}).empty();
  }));
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

// A file may grow so far and no further, as on a disk that is full: one clear message, and no lost
// run.
class FullDisk : public LaunchTest, public testing::WithParamInterface<int> {};

TEST_P(FullDisk, EndsTheRunWithAMessageAndLosesNothing) {
  const std::string expected = undisturbed_digest();
  std::string line = fmt::format("trap '' XFSZ; ulimit -f {}; exec", GetParam());  // KiB
  for (const auto& part :
       command({(folder_ / "tiny.yaml").string(), "--run-dir", paths().root.string()})) {
    line += " '" + part + "'";
  }
  start({"/bin/bash", "-c", line});
  const ExitStatus status = finish();
  EXPECT_EQ(status.signal, 0);
  EXPECT_EQ(status.code, 2) << output();
  EXPECT_NE(output().find("error: "), std::string::npos) << output();
  EXPECT_NE(output().find("File too large"), std::string::npos) << output();
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

// The optimizer of a checkpoint has 97 KiB, the store of trajectories reaches more than 128.
INSTANTIATE_TEST_SUITE_P(Writers, FullDisk, testing::Values(80, 128), [](const auto& test) {
  return test.param == 80 ? "trainer" : "scheduler";
});

TEST_F(LaunchTest, AnUnknownKeyIsNamedWithItsNearest) {
  start_run("run", {"rollout.group_sze=3"});
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(output().find("group_size"), std::string::npos) << output();
  EXPECT_FALSE(fs::exists(paths().root));
}

TEST_F(LaunchTest, ADryRunStopsAtThePlan) {
  start_run("run", {"--dry-run"});
  expect_done();
  EXPECT_FALSE(fs::exists(paths().root));
  EXPECT_FALSE(output().empty());
}

TEST_F(LaunchTest, WhatTheSchedulerRefusesIsNamedBeforeAnythingStarts) {
  for (const bool dry : {true, false}) {
    std::vector<std::string> arguments{"run.steps=0"};
    if (dry) arguments.push_back("--dry-run");
    start_run("run", arguments);
    EXPECT_EQ(finish().code, 2);
    EXPECT_NE(output().find("error: override run.steps=0: run.steps is 0"), std::string::npos)
        << output();
    EXPECT_FALSE(fs::exists(paths().root));
  }
}

TEST_F(LaunchTest, AnotherConfigOnARunIsRefused) {
  start_run("run", {"run.steps=1"});
  expect_done();
  start_run("run", {"run.steps=1", "optim.lr=0.125"});
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(output().find("another config"), std::string::npos) << output();
}

TEST_F(LaunchTest, TwoDirectoriesAreRefused) {
  start_run("run", {"run.dir=" + (folder_ / "other").string()});
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(output().find("/run says it too. Remove one of them."), std::string::npos) << output();
  EXPECT_FALSE(fs::exists(paths().root));
}

TEST_F(LaunchTest, WithoutAConfigItSaysWhatItWants) {
  start(command({}));
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(output().find("--run-dir"), std::string::npos) << output();
  start(command({"--run-dir", (folder_ / "none").string()}));
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(output().find("holds no run"), std::string::npos) << output();
}

}  // namespace
}  // namespace tailrace
