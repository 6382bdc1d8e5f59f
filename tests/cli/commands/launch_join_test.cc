// Workers that a person adds to a living run, and takes away again: the work is shared, and the
// weights stay what they would have been.
#include <chrono>
#include <thread>

#include "scheduler/store/journal.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

// Long enough that a worker is met with work in hand: not by many steps, which take long where each
// message waits for its turn, but by episodes that take a while.
constexpr int kLongSteps = 24;
std::vector<std::string> long_run() {
  return {fmt::format("run.steps={}", kLongSteps), "env.name=paced", "env.settings.turns=4",
          "env.settings.latency_ms=30"};
}

class LaunchJoin : public LaunchTest {
 protected:
  ~LaunchJoin() override {
    if (!HasFailure()) return;
    for (const fs::path& said : said_) fmt::print("{}", read_file(said).value());
  }

  struct Joined {
    ChildProcess process;
    fs::path said;
  };
  Joined join(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {TAILRACE_BINARY, "worker", "--join", run()};
    command.insert(command.end(), more.begin(), more.end());
    said_.push_back(folder_ / fmt::format("joined-{}", said_.size()));
    auto child = ChildProcess::spawn(command, said_.back());
    if (!child) throw std::runtime_error(child.failure().message);
    return {std::move(child).value(), said_.back()};
  }
  // Until it has its weights, or any other line of its log.
  void expect_at_work(const std::string& name = "rollout-2",
                      const std::string& line = "weights installed") {
    EXPECT_TRUE(wait_until([&] { return log_of(name).find(line) != std::string::npos; }))
        << log_of(name);
  }
  std::string log_of(const std::string& name) const {
    const auto text = read_file(paths().logs() / (name + ".log"));
    return text ? text.value() : "";
  }
  ExitStatus end_of(Joined& joined) {
    std::optional<ExitStatus> status;
    if (!wait_until([&] { return (status = joined.process.try_reap()).has_value(); })) {
      ADD_FAILURE() << "it hangs";
      joined.process.send_signal(SIGKILL);
      return {-1, SIGKILL};
    }
    return *status;
  }
  std::string run() const { return paths().root.string(); }
  std::string status() const { return run_binary("status " + run()).out; }

  // Work is leased to a worker that is stopped. By the journal: `status` takes a process, and the
  // longer the worker is stopped, the sooner it is taken for gone. Looked at twice: what it had
  // finished before it was stopped may be on its way.
  bool has_work(const std::string& name) const {
    for (int i = 0; i < 2; ++i) {
      const auto seen = scheduler::restore(paths().journal());
      if (!seen || !seen.value().state) return false;
      const auto& workers = seen.value().state->workers;
      const auto found = workers.find(name);
      if (found == workers.end() || !found->second.connected || found->second.leased == 0)
        return false;
      if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    return true;
  }

  // Stops it (SIGSTOP) at a moment when work is leased to it.
  void stop_with_work_in_hand(Joined& joined) {
    EXPECT_TRUE(wait_until([&] {
      joined.process.send_signal(SIGSTOP);
      if (has_work("rollout-2")) return true;
      joined.process.send_signal(SIGCONT);
      // Time to install what the run has come to meanwhile.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return false;
    })) << status();
  }

  // A run of some length, and one that a person's worker has joined; its trainer goes on.
  Joined start_and_join() {
    start_run("other", long_run());
    expect_done();
    start_run("run", long_run());
    const pid_t trainer = stop_in_the_middle();
    Joined joined = join();
    expect_at_work();
    ::kill(trainer, SIGCONT);
    return joined;
  }
  void expect_as_if_nobody_had_joined() {
    EXPECT_EQ(final_digest("run", kLongSteps), final_digest("other", kLongSteps));
    expect_each_step_once("run", kLongSteps);
  }

  std::vector<fs::path> said_;
};

TEST_F(LaunchJoin, SharesTheWorkAndChangesNoBit) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  Joined first = join(), second = join();
  expect_at_work("rollout-2");
  expect_at_work("rollout-3");
  Joined reward = join({"--role", "reward"});
  std::string said;
  EXPECT_TRUE(wait_until([&] {
    return (said = status()).find("reward-1: joined") != std::string::npos;
  })) << said;
  EXPECT_NE(said.find("rollout-2: joined, 0 of "), std::string::npos) << said;
  EXPECT_NE(said.find("rollout-3: joined, 0 of "), std::string::npos) << said;

  // A role has one holder still.
  const auto refused = run_binary(fmt::format("worker --role rollout --index 3 --run {}", run()));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("rollout-3 of " + run() + " is played already"), std::string::npos)
      << refused.err;
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  for (Joined* joined : {&first, &second, &reward}) {
    EXPECT_TRUE(end_of(*joined).ok());
    const std::string words = read_file(joined->said).value();
    EXPECT_NE(words.find("has ended or was stopped"), std::string::npos) << words;
  }
  EXPECT_NE(log_of("rollout-2").find("version done"), std::string::npos) << log_of("rollout-2");
  EXPECT_NE(log_of("rollout-3").find("version done"), std::string::npos) << log_of("rollout-3");
}

TEST_F(LaunchJoin, LeavesWithAGoodbyeAndItsWorkGoesElsewhere) {
  Joined joined = start_and_join();
  stop_with_work_in_hand(joined);
  joined.process.send_signal(SIGTERM);
  joined.process.send_signal(SIGCONT);
  EXPECT_EQ(end_of(joined).code, 130);
  const std::string words = read_file(joined.said).value();
  EXPECT_NE(words.find("joined " + run() + " as rollout-2"), std::string::npos) << words;
  EXPECT_NE(words.find("rollout-2 has left"), std::string::npos) << words;
  expect_done();
  expect_as_if_nobody_had_joined();
  const std::string scheduler = log_of("scheduler-0");
  EXPECT_NE(scheduler.find("rollout-2 is gone: said goodbye"), std::string::npos) << scheduler;
  EXPECT_EQ(scheduler.find("gets no work"), std::string::npos) << scheduler;
}

TEST_F(LaunchJoin, KilledItsWorkGoesElsewhereAndNobodyStartsItAgain) {
  Joined joined = start_and_join();
  stop_with_work_in_hand(joined);
  joined.process.send_signal(SIGKILL);
  (void)end_of(joined);
  expect_done();
  expect_as_if_nobody_had_joined();
  EXPECT_EQ(output().find("rollout-2"), std::string::npos) << output();
}

TEST_F(LaunchJoin, TheNameOfOneThatWasKilledIsFree) {
  Joined joined = start_and_join();
  stop_with_work_in_hand(joined);
  joined.process.send_signal(SIGKILL);
  (void)end_of(joined);
  Joined next = join();
  expect_done();
  expect_as_if_nobody_had_joined();
  EXPECT_TRUE(end_of(next).ok());
  const std::string words = read_file(next.said).value();
  EXPECT_NE(words.find(" as rollout-2;"), std::string::npos) << words;
}

TEST_F(LaunchJoin, WhereItCannotIsSaidAtOnce) {
  const auto expect_refusal = [&](std::string_view why, const std::string& more = "") {
    const auto begin = std::chrono::steady_clock::now();
    const auto refused = run_binary(fmt::format("worker --join {} {}", run(), more));
    EXPECT_EQ(refused.exit_code, 2) << why;
    EXPECT_NE(refused.err.find(why), std::string::npos) << refused.err;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  };
  expect_refusal("holds no run (no config.yaml)");
  start_run();
  const pid_t trainer = stop_in_the_middle();
  expect_refusal("a run has one trainer", "--role trainer");
  expect_refusal("--index has no use with --join", "--index 3");
  expect_refusal("RUN, which adds a worker", "--run " + run());

  const auto with = [&](const fs::path& file, const std::string& text, std::string_view why) {
    const std::string before = read_file(file).value();
    ASSERT_TRUE(write_file_atomic(file, text));
    expect_refusal(why);
    ASSERT_TRUE(write_file_atomic(file, before));
  };
  const std::string endpoint = read_file(paths().root / "endpoint").value();
  const std::string name = endpoint.substr(0, endpoint.find('\n') + 1);
  with(paths().root / "endpoint", name + "0123456789abcdef\n", "is run by another build");
  with(paths().root / "endpoint", name, "it does not say which");
  with(paths().root / "begun", "ipc:///another/launch", "is still starting");
  const std::string config = read_file(paths().config()).value();
  with(paths().config(), config + "\n# edited\n", "it was edited or damaged");
  EXPECT_EQ(log_of("rollout-2"), "");

  // The launch is gone, and could not say so.
  launched_->send_signal(SIGKILL);
  (void)finish();
  EXPECT_TRUE(wait_until([&] { return workers("scheduler").empty(); }));
  expect_refusal("its scheduler does not answer");
  (void)trainer;
  continue_run();
  expect_done();
  expect_refusal("nobody runs it now: it has ended or was stopped");
}

// Before its patience with a silent scheduler: the next launch may want the name.
TEST_F(LaunchJoin, ItDoesNotOutliveItsLaunchForLong) {
  start_run();
  const pid_t trainer = stop_in_the_middle();
  Joined joined = join();
  expect_at_work();
  launched_->send_signal(SIGINT);
  ::kill(trainer, SIGCONT);
  EXPECT_EQ(finish().code, 130) << output();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(end_of(joined).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  continue_run();
  expect_done();
}

}  // namespace
}  // namespace tailrace
