// What a launch does about processes that are there and make no progress.
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cli/prepare/setup.h"
#include "cli/roles/endpoint.h"
#include "core/config/yaml_config.h"
#include "tests/cli/commands/launch_fixture.h"
#include "tests/core/base/environment_variable.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

class LaunchStalls : public LaunchTest {
 protected:
  // Long enough for a busy machine, and short beside the patience of the tests.
  static constexpr std::string_view kStall = "run.stall_seconds=4";

  void start_watched(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {std::string(kStall)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    start_run("run", arguments);
  }
  // As start_watched(), with processes whose threads hang_thread() can hang.
  void start_hangable(const std::vector<std::string>& more = {}) {
    const EnvironmentVariable preload("LD_PRELOAD", HANG_ON_SIGNAL);
    start_watched(more);
  }
  static void hang_thread(pid_t process, pid_t thread) {
    EXPECT_EQ(::syscall(SYS_tgkill, process, thread, SIGUSR1), 0);
  }
  // The one that does a role's work; it has the number of its process.
  static void hang_main_thread(pid_t process) { hang_thread(process, process); }

  pid_t one(const std::string& role, int index = 0) const {
    const auto found = workers(role, index);
    EXPECT_EQ(found.size(), 1u) << role;
    return found.empty() ? -1 : found[0];
  }
  bool said(const std::string& text) const { return output().find(text) != std::string::npos; }
  // "trainer-0 (process 12) has made no progress for 4 s: WHY, and is replaced"
  bool said_of(const std::string& role, pid_t pid, const std::string& rest) const {
    const std::string begin = fmt::format("{} (process {}) has made no progress for ", role, pid);
    const size_t at = output().find(begin);
    return at != std::string::npos && output().substr(at, 200).find(rest) != std::string::npos;
  }
  void expect_undisturbed(const std::string& expected) {
    expect_done();
    EXPECT_EQ(final_digest(), expected);
    expect_each_step_once();
  }
};

TEST_F(LaunchStalls, StoppedProcessesAreNamedAndReplaced) {
  const std::string expected = undisturbed_digest();
  start_watched();
  const pid_t trainer = stop_in_the_middle();
  const pid_t rollout = one("rollout", 1), reward = one("reward");
  for (const pid_t pid : {rollout, reward}) ::kill(pid, SIGSTOP);
  expect_undisturbed(expected);
  const std::string why = "a signal has stopped it, and is replaced";
  EXPECT_TRUE(said_of("trainer-0", trainer, why)) << output();
  EXPECT_TRUE(said_of("rollout-1", rollout, why)) << output();
  EXPECT_TRUE(said_of("reward-0", reward, why)) << output();
  // Who waits for whom; what it says in each case is tested beside it (Waits).
  EXPECT_TRUE(said("The scheduler: version ")) << output();
}

TEST_F(LaunchStalls, AStoppedSchedulerIsReplacedAndCostsNoSample) {
  const std::string expected = undisturbed_digest();
  start_watched();
  ASSERT_TRUE(wait_until([&] { return has_step(2); })) << output();
  const pid_t scheduler = one("scheduler");
  ::kill(scheduler, SIGSTOP);
  expect_undisturbed(expected);
  EXPECT_TRUE(said_of("scheduler-0", scheduler, "All others wait for it.")) << output();
}

// Their I/O threads go on and say that they live.
TEST_F(LaunchStalls, DeadlockedProcessesAreNamedAndReplaced) {
  const std::string expected = undisturbed_digest();
  start_hangable();
  ASSERT_TRUE(wait_until([&] { return has_step(2); })) << output();
  const pid_t reward = one("reward"), trainer = one("trainer");
  hang_main_thread(reward);
  hang_main_thread(trainer);
  const std::string why = "its threads wait for something that does not come, and is replaced";
  ASSERT_TRUE(wait_until([&] { return said_of("trainer-0", trainer, why); })) << output();
  ASSERT_TRUE(wait_until([&] { return said_of("reward-0", reward, why); })) << output();
  const pid_t scheduler = one("scheduler");
  hang_main_thread(scheduler);
  expect_undisturbed(expected);
  EXPECT_TRUE(said_of("scheduler-0", scheduler, why)) << output();
}

// With nobody to kill it, and long before any deadline: what it holds goes on elsewhere.
TEST_F(LaunchStalls, ARolloutWorkerThatDeadlocksHoldsNobodyUp) {
  constexpr int kLongSteps = 40;  // so that the run is not over before it is met
  const std::string steps = fmt::format("run.steps={}", kLongSteps);
  start_run("other", {steps});
  expect_done();
  // Beside other work it may be stopped for so long that its work goes elsewhere as that of one
  // that is lost, before it hangs: then once more.
  bool is_noticed = false;
  for (int attempt = 0; attempt < 5 && !is_noticed; ++attempt) {
    SCOPED_TRACE(attempt);
    fs::remove_all(paths().root);
    {
      const EnvironmentVariable preload("LD_PRELOAD", HANG_ON_SIGNAL);
      start_run("run", {"run.stall_seconds=0", steps});
    }
    const pid_t trainer = stop_in_the_middle();
    ASSERT_GT(trainer, 0);
    // The other is stopped, and all work goes to this one: it runs in short bursts, and another
    // that always runs would leave it none.
    const pid_t other = one("rollout", 0), hangs = one("rollout", 1);
    ::kill(other, SIGSTOP);
    ::kill(trainer, SIGCONT);
    ASSERT_TRUE(wait_until([&] {
      ::kill(hangs, SIGSTOP);
      if (holds_work("rollout-1: ")) return true;
      ::kill(hangs, SIGCONT);
      return false;
    }));
    hang_main_thread(hangs);
    ::kill(hangs, SIGCONT);
    ::kill(other, SIGCONT);
    const auto begin = std::chrono::steady_clock::now();
    expect_done();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
    EXPECT_EQ(final_digest("run", kLongSteps), final_digest("other", kLongSteps));
    expect_each_step_once("run", kLongSteps);
    const std::string log = read_file(paths().log("scheduler", 0)).value();
    is_noticed = log.find("rollout-1 makes no progress") != std::string::npos;
    EXPECT_EQ(output().find("rollout-1: "), std::string::npos) << output();
  }
  EXPECT_TRUE(is_noticed);
}

TEST_F(LaunchStalls, WhatADebuggerHoldsIsLeftAlone) {
  const std::string expected = undisturbed_digest();
  start_watched();
  ASSERT_TRUE(wait_until([&] { return has_step(2); })) << output();
  const pid_t trainer = one("trainer");
  if (::ptrace(PTRACE_SEIZE, trainer, nullptr, nullptr) != 0)
    GTEST_SKIP() << "this system lets nobody trace a process";
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, trainer, nullptr, nullptr), 0);
  ASSERT_EQ(::waitpid(trainer, nullptr, __WALL), trainer);
  EXPECT_TRUE(wait_until([&] {
    return said_of("trainer-0", trainer, "a debugger holds it, and is left alone");
  })) << output();
  std::this_thread::sleep_for(1s);  // in which it is not killed either
  EXPECT_EQ(one("trainer"), trainer);
  ASSERT_EQ(::ptrace(PTRACE_DETACH, trainer, nullptr, nullptr), 0);
  expect_undisturbed(expected);
  EXPECT_FALSE(said("is replaced")) << output();
}

TEST_F(LaunchStalls, ADeadlockedThreadOfOneProcessEndsTheRunByName) {
  start_hangable({"--in-process"});
  ASSERT_TRUE(wait_until([&] { return has_step(2); })) << output();
  const auto found = processes_with({"launch", "--in-process", paths().root.string()});
  ASSERT_EQ(found.size(), 1u);
  // The first thread that it made plays the first role.
  std::set<pid_t> threads;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", found[0])))
    threads.insert(static_cast<pid_t>(std::stol(thread.path().filename())));
  hang_thread(found[0], *threads.upper_bound(found[0]));
  EXPECT_EQ(finish().code, 1) << output();
  EXPECT_TRUE(said("error: scheduler-0 has made no progress for ")) << output();
  // Its own: the thread that watches it runs.
  EXPECT_TRUE(said("s: its threads wait for something that does not come")) << output();
  continue_run();
  expect_done();
  expect_each_step_once();
}

// The scheduler reads all of the dataset before it does anything else.
TEST_F(LaunchStalls, AWorkerThatReadsItsRunMakesProgress) {
  constexpr int kRows = 1000;
  fs::create_directory(paths().root);
  std::ofstream dataset(folder_ / "rows.jsonl");
  for (int i = 0; i < kRows; ++i)
    dataset << R"({"prompt": "2 + 2", "answer": "4"})"
            << "\n";
  dataset.close();
  RunOptions options;
  bind_config(
      parse_config(fmt::format("model: {{path: none}}\n"
                               "env: {{name: text, dataset: {}, settings: {{verifier: number}}}}\n"
                               "rollout: {{max_context_tokens: 64}}\n",
                               (folder_ / "rows.jsonl").string()),
                   "a test", {}),
      options);
  std::ofstream(paths().config()) << resolved_config(options);
  fs::create_directory(paths().roles());
  const RunEndpoint endpoint(paths().root);
  const auto page = StatusPage::create();
  ASSERT_TRUE(page);
  output_ = folder_ / "worker.log";
  auto worker = ChildProcess::spawn(
      {TAILRACE_BINARY, "worker", "--role", "scheduler", "--index", "0", "--run",
       paths().root.string(), "--status", std::to_string(ChildProcess::kStatusDescriptor)},
      output_, &page.value());
  ASSERT_TRUE(worker) << worker.failure().message;
  launched_.emplace(std::move(worker).value());
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_GE(page.value().pulse().beats(), kRows) << output();
}

}  // namespace
}  // namespace tailrace
