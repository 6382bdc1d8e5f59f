// `tailrace launch` as a person uses it, end to end over processes, with faults.
//
// The run is the smallest that has all parts; it takes a few seconds. To hit the middle of it, the
// trainer is stopped (SIGSTOP) while something is done to the others: the run cannot end meanwhile.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "cli/run/roles.h"
#include "core/base/file.h"
#include "core/base/metrics.h"
#include "core/base/random.h"
#include "core/base/run_directory.h"
#include "core/weights/manifest.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto kPatience = 100s;
constexpr int kSteps = 16;

constexpr std::string_view kConfig = R"(
run: {name: tiny, seed: 3, steps: 16}
model:
  create: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, max_positions: 128}
env:
  name: frozen_grid
  settings: {max_turns: 8}
rollout:
  prompts_per_step: 4
  group_size: 4
  max_turns: 8
  max_context_tokens: 128
  workers: 2
sft:
  demonstrations: 300
  epochs: 3
  batch_tokens: 512
  optim: {lr: 0.008}
optim: {lr: 0.001}
train: {microbatch_tokens: 1024, threads: 1}
eval: {prompts: 8, interval_steps: 8}
checkpoint: {interval_steps: 3}
)";

template <class Done>
bool wait_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

// Processes whose command line holds all of `parts`.
std::vector<pid_t> processes_with(const std::vector<std::string>& parts) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
          return line.find(part) != std::string::npos;
        })) {
      found.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return found;
}

class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    std::string path = (fs::temp_directory_path() / "trlaunch-XXXXXX").string();
    folder_ = ::mkdtemp(path.data());
    std::ofstream(folder_ / "tiny.yaml") << kConfig;
  }
  ~LaunchTest() override {
    if (HasFailure()) {
      for (const auto& run : {"run", "other"}) show_logs(folder_ / run);
    }
    launched_.reset();
    fs::remove_all(folder_);
  }

  static void show_logs(const fs::path& run) {
    std::error_code ignored;
    for (const auto& log : fs::directory_iterator(run / "logs", ignored)) {
      std::string text;
      for (const auto& line : last_lines(log.path(), 12)) text += "  " + line + "\n";
      fmt::print("{}:\n{}", log.path().filename().string(), text);
    }
  }

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {TAILRACE_BINARY, "launch"});
    return arguments;
  }
  void start(const std::vector<std::string>& whole_command) {
    output_ = folder_ / fmt::format("output-{}", ++num_started_);
    auto child = ChildProcess::spawn(whole_command, output_);
    ASSERT_TRUE(child) << child.failure().message;
    launched_.emplace(std::move(child).value());
  }
  void start_run(const std::string& run = "run", const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {(folder_ / "tiny.yaml").string(), "--run-dir",
                                          (folder_ / run).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    start(command(arguments));
  }
  void continue_run() { start(command({"--run-dir", (folder_ / "run").string()})); }

  // Of the launch that was started last.
  ExitStatus finish() {
    std::optional<ExitStatus> status;
    if (!wait_until([&] { return (status = launched_->try_reap()).has_value(); })) {
      ADD_FAILURE() << "it hangs:\n" << output();
      launched_->send_signal(SIGKILL);
      return {-1, SIGKILL};
    }
    launched_.reset();
    return *status;
  }
  std::string output() const {
    auto text = read_file(output_);
    return text ? text.value() : "";
  }
  void expect_done() {
    const ExitStatus status = finish();
    EXPECT_TRUE(status.ok()) << describe(status) << "\n" << output();
  }

  RunPaths paths(const std::string& run = "run") const { return {folder_ / run}; }
  // The processes of this run that play a role.
  std::vector<pid_t> workers(const std::string& role, int index = 0) const {
    return processes_with(
        {"worker", "--role " + role, fmt::format("--index {} ", index), paths().root.string()});
  }
  bool has_step(int64_t step) const {
    const auto rows = read_metrics(paths().metrics());
    return rows &&
           std::any_of(rows.value().begin(), rows.value().end(), [step](const MetricsRow& row) {
             return row.step >= step && row.find("reward/mean") != nullptr;
           });
  }
  // Leaves the run in its middle, some steps done and the trainer stopped. The trainer runs in
  // short bursts until then: however slow this test is, it does not miss the moment.
  pid_t stop_in_the_middle() {
    std::vector<pid_t> trainers;
    const bool reached = wait_until([&] {
      if (trainers.empty()) trainers = workers("trainer");
      if (trainers.empty()) return false;
      ::kill(trainers[0], SIGSTOP);
      if (has_step(2)) return true;
      ::kill(trainers[0], SIGCONT);
      return false;
    });
    EXPECT_TRUE(reached) << output();
    EXPECT_FALSE(has_step(kSteps - 1)) << "too late";
    return reached ? trainers[0] : -1;
  }
  // Root digest of the last version: the proof that two runs are one.
  std::string final_digest(const std::string& run = "run", int steps = kSteps) const {
    auto manifest = read_manifest(paths(run).weights() / fmt::format("p0-v{}.json", steps));
    if (manifest) return manifest.value().root;
    ADD_FAILURE() << manifest.failure().message;
    return "";
  }
  // Each step is counted once, whatever happened. A row names the version that its step started
  // from.
  void expect_each_step_once(const std::string& run = "run", int num_steps = kSteps) const {
    auto rows = read_metrics(paths(run).metrics());
    ASSERT_TRUE(rows) << rows.failure().message;
    std::multiset<int64_t> steps;
    for (const auto& row : rows.value()) {
      if (row.find("reward/mean") != nullptr) steps.insert(row.step);
    }
    std::multiset<int64_t> expected;
    for (int64_t step = 0; step < num_steps; ++step) expected.insert(step);
    EXPECT_EQ(steps, expected);
  }
  // What an undisturbed run of the same config gives; computed once.
  const std::string& undisturbed_digest() {
    static std::string digest;
    if (digest.empty()) {
      start_run("other");
      expect_done();
      digest = final_digest("other");
    }
    return digest;
  }

  fs::path folder_, output_;
  std::optional<ChildProcess> launched_;
  int num_started_ = 0;
};

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
  std::vector<RoleName> killed;
  while (killed.size() < 12) {  // three of each: below the supervisor's bound
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + rng.below(150)));
    if (!processes_with({"launch", paths().root.string()}).empty()) {
      const auto roles = std::to_array<const char*>({"scheduler", "trainer", "rollout", "reward"});
      const RoleName victim{roles[killed.size() % 4], 0};
      const auto pids = workers(victim.role);
      if (pids.empty()) continue;
      ::kill(pids[0], SIGKILL);
      killed.push_back(victim);
      continue;
    }
    break;  // it was faster
  }
  expect_done();
  EXPECT_GE(killed.size(), 4u);
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
