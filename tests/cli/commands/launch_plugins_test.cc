// Whole runs on libraries of environments and rewards (sandbox/plugin).
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "scheduler/store/journal.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

class LaunchPlugins : public LaunchTest {
 protected:
  static std::string plugin(const std::string& name) {
    return (fs::path(TAILRACE_BINARY).parent_path() / "plugins" / ("lib" + name + ".so")).string();
  }
  // A copy of this test's: other tests have processes of the same library.
  std::string own(const std::string& name) const {
    const fs::path copy = folder_ / ("lib" + name + ".so");
    fs::copy_file(plugin(name), copy, fs::copy_options::skip_existing);
    return copy.string();
  }
  // Begins a run on `library`; its root digest once it has ended.
  std::string play(const std::string& run, const std::string& library, const std::string& settings,
                   const std::vector<std::string>& more = {}, int steps = kSteps) {
    std::vector<std::string> overrides = {"env.plugin=" + own(library), "env.name=" + library,
                                          "env.settings=" + settings};
    overrides.insert(overrides.end(), more.begin(), more.end());
    start_run(run, overrides);
    expect_done();
    return final_digest(run, steps);
  }
};

TEST_F(LaunchPlugins, WhereALibraryRunsChangesNoBit) {
  const std::string settings = "{size: 3, max_turns: 8, scored_by: short_way}";
  const std::string here = play("here", "maze", settings, {"env.isolation=none"});
  EXPECT_EQ(play("there", "maze", settings, {"env.isolation=process"}), here);
  expect_each_step_once("there");
}

// In one of a hundred steps it throws, crashes, exits, hangs, prints or forks. Nothing of that
// becomes a reward, so the weights are those of the run in which nothing went wrong.
TEST_F(LaunchPlugins, WhatGoesWrongInALibraryCostsTimeAndNoBit) {
  // Longer than a loaded machine takes for a call, and more chances than a sample can use up.
  const std::vector<std::string> more = {"rollout.step_timeout_s=4", "env.isolation=process",
                                         "scheduler.retries_env_failed=20", "sft.demonstrations=0"};
  const std::string good = play("good", "faulty", "{max_turns: 4}", more);
  const std::string calls = (folder_ / "calls").string();
  EXPECT_EQ(play("bad", "faulty", "{max_turns: 4, fault: sometimes, file: " + calls + "}", more),
            good);
  expect_each_step_once("bad");
  const std::string log = read_file(paths("bad").log("scheduler", 0)).value();
  for (const char* kind : {"a bad day", "(Segmentation fault) in step()",
                           "has ended with status 7 in step()", "its process was killed"})
    EXPECT_NE(log.find(kind), std::string::npos) << kind << " is not in\n" << log;
  EXPECT_TRUE(processes_with({"plugin-host", own("faulty")}).empty());
}

// In one of forty scores the reward crashes, hangs or has no verdict. A sample is verified again
// with the tokens that it has, so that the weights are those of the run in which nothing went
// wrong.
TEST_F(LaunchPlugins, ARewardThatGoesWrongIsAskedAgainAndCostsNoBit) {
  const std::string settings = "{max_turns: 4, fault: judged}";
  const auto more = [&](const std::string& sometimes) {
    return std::vector<std::string>{"reward.plugin=" + own("faulty"), "reward.isolation=process",
                                    "reward.settings={sometimes: '" + sometimes + "'}",
                                    "scheduler.verify_seconds=4",
                                    // Enough that none of them stays without a verdict.
                                    "scheduler.retries_verifier_failed=20", "sft.demonstrations=0"};
  };
  const std::string good = play("good", "faulty", settings, more(""));
  EXPECT_EQ(sum_of_rows("rollout/infra_failed_frac", "good"), 0);
  EXPECT_GT(sum_of_rows("policy/updates", "good"), 0) << "else all weights are the same";
  EXPECT_EQ(play("bad", "faulty", settings, more((folder_ / "calls").string())), good);
  expect_each_step_once("bad");
  // It says what it tried again, how often and why.
  EXPECT_GT(sum_of_rows("rollout/infra_failed_frac", "bad"), 0);
  EXPECT_EQ(sum_of_rows("rollout/failed_prompts", "bad"), 0);
  EXPECT_NE(read_file(paths("bad").timeline()).value().find("verifier_failed"), std::string::npos);
  const std::string log = read_file(paths("bad").log("scheduler", 0)).value();
  // A hang is not always told here: at its deadline the scheduler asks again by itself.
  for (const char* kind : {"(Segmentation fault) in score()", "the judge is away"})
    EXPECT_NE(log.find(kind), std::string::npos) << log;
}

// In the worker, which goes with it: the launcher names the call, and another worker plays the
// task.
TEST_F(LaunchPlugins, ACrashInAWorkerIsNamedAndCostsNoBit) {
  const std::vector<std::string> more = {"env.isolation=none", "sft.demonstrations=0"};
  const std::string good = play("good", "faulty", "{max_turns: 4}", more);
  const std::string once = (folder_ / "once").string();
  EXPECT_EQ(play("bad", "faulty", "{max_turns: 4, fault: crash_once, file: " + once + "}", more),
            good);
  expect_each_step_once("bad");
  EXPECT_THAT(output(), testing::ContainsRegex(
                            "rollout-[01]: killed by signal 11 \\(Segmentation fault\\) in step"
                            "\\(\\) of faulty \\(libfaulty.so\\), task seed [0-9]+; starting it"));
}

// One of eight rows cannot be played: it is asked for once, and the run goes on without it.
TEST_F(LaunchPlugins, ABrokenTaskIsExcludedAndCounted) {
  std::ofstream rows(folder_ / "rows.jsonl");
  for (int i = 0; i < 8; ++i)
    rows << fmt::format("{{\"prompt\": \"{}\"}}\n", i == 5 ? "broken" : "sound");
  rows.close();
  const std::vector<std::string> more = {"env.dataset=" + (folder_ / "rows.jsonl").string(),
                                         "sft.demonstrations=0", "run.steps=6", "eval.prompts=0",
                                         "scheduler.archive=true"};
  play("run", "faulty", "{max_turns: 4, fault: broken_row}", more, 6);
  expect_each_step_once("run", 6);
  EXPECT_EQ(sum_of_rows("rollout/infra_failed_frac"), 0);
  const auto metrics = read_metrics(paths().metrics());
  EXPECT_EQ(*metrics.value().back().find("rollout/broken_tasks"), 1);
  const std::string log = read_file(paths().log("scheduler", 0)).value();
  const std::string words = "row 5 of dataset 'faulty' is broken";
  EXPECT_NE(log.find(words), std::string::npos) << log;
  EXPECT_EQ(log.find(words), log.rfind(words)) << log;
  EXPECT_NE(log.find("this row has no end"), std::string::npos) << log;
  const auto status = run_binary("status " + paths().root.string());
  EXPECT_NE(status.out.find(" broken"), std::string::npos) << status.out;
  // 24 prompts in epochs of 7, and each passes the row by.
  const auto end = scheduler::restore(paths().journal());
  ASSERT_TRUE(end && end.value().state);
  const scheduler::Policy& policy = end.value().state->policies.at(0);
  const scheduler::Dataset& dataset = policy.datasets.at(0);
  EXPECT_EQ(dataset.broken.rows, std::set<int64_t>{5});
  EXPECT_EQ(dataset.broken.found, 1);
  EXPECT_EQ(dataset.ended_as(scheduler::TaskEnd::kTrained), 24);
  EXPECT_EQ(dataset.ended_as(scheduler::TaskEnd::kBroken), 3);
  EXPECT_EQ(dataset.ended_as(scheduler::TaskEnd::kFailed), 0);
  EXPECT_TRUE(end.value().state->health.empty());
}

TEST_F(LaunchPlugins, ADatasetOfBrokenTasksEndsTheRunWithItsName) {
  std::ofstream(folder_ / "rows.jsonl") << "{\"prompt\": \"broken\"}\n{\"prompt\": \"broken 2\"}\n";
  start_run("run", {"env.plugin=" + plugin("faulty"), "env.name=faulty",
                    "env.settings={max_turns: 4, fault: broken_row}",
                    "env.dataset=" + (folder_ / "rows.jsonl").string(), "sft.demonstrations=0",
                    "eval.prompts=0"});
  EXPECT_NE(finish().code, 0);
  EXPECT_NE(output().find("all 2 rows of dataset 'faulty' are broken"), std::string::npos)
      << output();
}

// Which libraries play where, before anything runs.
TEST_F(LaunchPlugins, ThePlanSaysWhatIsIsolated) {
  start_run("run", {"--dry-run", "env.plugin=" + plugin("faulty"), "env.name=faulty",
                    "env.settings={}", "reward.plugin=" + plugin("maze"), "reward.isolation=none"});
  EXPECT_EQ(finish().code, 0) << output();
  EXPECT_THAT(output(),
              testing::HasSubstr("environments faulty of libfaulty.so, in processes of their own"))
      << output();
  EXPECT_THAT(output(), testing::HasSubstr("rewards of libmaze.so, in the workers")) << output();
}

// One library, whose environment and reward play in two ways, named in two ways.
TEST_F(LaunchPlugins, EnvironmentAndRewardOfOneLibraryArePlacedApart) {
  const std::string settings = "{size: 3, max_turns: 8, scored_by: short_way}";
  const std::string both = play("both", "maze", settings);
  const std::string other = fs::path(own("maze")).parent_path() / "." / "libmaze.so";
  EXPECT_EQ(play("apart", "maze", settings, {"reward.plugin=" + other, "reward.isolation=none"}),
            both);
  EXPECT_TRUE(fs::exists(paths("apart").environments()));
}

TEST_F(LaunchPlugins, ARunKeepsItsLibrary) {
  const fs::path copy = folder_ / "libmaze.so";
  fs::copy_file(plugin("maze"), copy);
  const std::vector<std::string> maze = {"env.plugin=" + copy.string(), "env.name=maze",
                                         "env.settings={size: 3, max_turns: 8}"};
  start_run("run", maze);
  expect_done();
  fs::remove(copy);
  fs::copy_file(plugin("faulty"), copy);
  start(command({"--run-dir", paths().root.string(), "run.steps=20"}));
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_NE(output().find("libmaze.so"), std::string::npos) << output();
}

}  // namespace
}  // namespace tailrace
