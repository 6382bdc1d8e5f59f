// The supervisor over shell scripts in the place of workers.
#include "cli/process/supervisor.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/process/child_process.h"
#include "cli/process/quiet_watch.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using End = SupervisorResult::End;

// A child that makes progress as long as a test may take.
const std::string kGoesOn = std::string("exec ") + STATUS_CHILD + " 1000000";

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    options_.first_delay = 10ms;
    options_.tick = 10ms;
    options_.drain_timeout = 300ms;
  }

  // A child that runs `script` in the test's folder.
  void add(const std::string& name, const std::string& script) {
    const size_t dash = name.find('-');
    children_.push_back({.role = {value_of<RoleKind>(name.substr(0, dash)).value(),
                                  std::stoi(name.substr(dash + 1))},
                         .command = {"/bin/sh", "-c", "cd '" + folder_.string() + "'; " + script},
                         .log = folder_ / (name + ".log")});
  }
  SupervisorResult run() {
    return supervise(
        children_, options_, [this](const std::string& line) { said_.push_back(line); },
        [this] {
          if (on_tick_) on_tick_();
          end_at_deadline();
        });
  }
  // What would go on for ever ends as interrupted: the second signal kills.
  void end_at_deadline() {
    if (std::chrono::steady_clock::now() < deadline_) return;
    ADD_FAILURE() << "it does not end";
    ::raise(SIGINT);
  }
  bool exists(const std::string& file) const { return fs::exists(folder_ / file); }
  int64_t lines_in(const std::string& file) const {
    const std::string text = read_file(folder_ / file).value();
    return std::count(text.begin(), text.end(), '\n');
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  SupervisorOptions options_;
  std::vector<ChildSpec> children_;
  std::vector<std::string> said_;
  std::function<void()> on_tick_;

 private:
  const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + 60s;
};

TEST_F(SupervisorTest, EndsWhenTheSchedulerDoes) {
  add("scheduler-0", "while [ ! -e up ]; do sleep 0.01; done; exit 0");
  add("rollout-0", "echo hello; touch up; exec sleep 100");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  EXPECT_EQ(lines_in("rollout-0.log"), 1);
}

TEST_F(SupervisorTest, StartsADeadWorkerAgain) {
  add("scheduler-0", "while [ ! -e third ]; do sleep 0.01; done");
  add("rollout-0",
      "[ -e second ] && touch third && exec sleep 100; [ -e first ] && touch second && kill -9 $$; "
      "touch first; exit 1");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_NE(said_[0].find("rollout-0: exit status 1"), std::string::npos) << said_[0];
  EXPECT_NE(said_[1].find("rollout-0: killed by signal 9 (Killed)"), std::string::npos) << said_[1];
}

TEST_F(SupervisorTest, ACrashLoopEndsTheRunAndNamesItsCause) {
  options_.max_restarts = 2;
  add("scheduler-0", "exec sleep 100");
  add("trainer-0", "echo begin; echo the cause; exit 7");
  const auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(
      result.message.find("trainer-0 died 3 times within 60 s, the last time with exit status 7"),
      std::string::npos)
      << result.message;
  EXPECT_NE(result.message.find("the cause"), std::string::npos) << result.message;
  // Two lines in each of three lives.
  EXPECT_EQ(lines_in("trainer-0.log"), 6);
}

TEST_F(SupervisorTest, AUserErrorIsNotTriedAgainAndIsAllThatIsSaid) {
  add("scheduler-0", "exec sleep 100");
  add("rollout-0",
      "echo 'info: started'; echo 'error: bad.safetensors: cut'; echo '       Try another.'; exit "
      "2");
  const auto result = run();
  EXPECT_EQ(result.end, End::kUserError);
  EXPECT_EQ(result.message, "rollout-0: bad.safetensors: cut\n       Try another.");
  EXPECT_TRUE(said_.empty());
}

TEST_F(SupervisorTest, AUserErrorOfOneWorkerEndsNothingOnceTheRunHasBegun) {
  options_.begun = [] { return true; };
  options_.max_restarts = 2;
  options_.max_delay = 20ms;
  add("scheduler-0",
      "n=0; while [ $n -lt 8 ]; do sleep 0.01; n=$(wc -l < rollout-0.log); done; exit 0");
  add("rollout-0", "echo 'error: the disk is full'; exit 2");
  add("rollout-1", "exec sleep 100");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  EXPECT_GE(said_.size(), 7u);  // tried again, also after more than max_restarts
}

TEST_F(SupervisorTest, SomebodyElseMayBeOneThatJoined) {
  options_.begun = [] { return true; };
  options_.joined = [](RoleKind kind) { return kind == RoleKind::kRollout; };
  options_.max_restarts = 2;
  options_.max_delay = 20ms;
  add("scheduler-0",
      "n=0; while [ $n -lt 8 ]; do sleep 0.01; n=$(wc -l < rollout-0.log); done; exit 0");
  add("rollout-0", "echo 'error: the disk is full'; exit 2");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  EXPECT_GE(said_.size(), 7u);
}

TEST_F(SupervisorTest, WhenNobodyElseDoesItsWorkAUserErrorEndsTheRunAfterSomeTries) {
  options_.begun = [] { return true; };
  options_.max_restarts = 2;
  add("scheduler-0", "exec sleep 100");
  add("rollout-0", "exec sleep 100");
  add("trainer-0", "echo 'error: the disk is full'; exit 2");
  const auto result = run();
  EXPECT_EQ(result.end, End::kUserError);
  EXPECT_EQ(result.message, "trainer-0: the disk is full");
  EXPECT_EQ(lines_in("trainer-0.log"), 3);
}

TEST_F(SupervisorTest, AUserErrorWithoutAWordIsGivenItsLog) {
  add("scheduler-0", "echo the cause; exit 2");
  const auto result = run();
  EXPECT_EQ(result.end, End::kUserError);
  EXPECT_NE(result.message.find("the cause"), std::string::npos) << result.message;
}

TEST_F(SupervisorTest, AnInterruptAsksTheSchedulerToStop) {
  add("scheduler-0",
      "trap 'touch asked; exit 130' TERM; touch ready; while :; do sleep 0.01; done");
  add("trainer-0", "exec sleep 100");
  bool sent = false;
  on_tick_ = [&] {
    if (!sent && exists("ready")) {
      sent = true;
      ::raise(SIGINT);
    }
  };
  const auto result = run();
  EXPECT_EQ(result.end, End::kInterrupted);
  EXPECT_TRUE(exists("asked"));
}

// Asked by somebody else: what it says of the run is what counts.
TEST_F(SupervisorTest, ASchedulerThatWasStoppedHasNotFinishedTheRun) {
  add("scheduler-0", "exit 130");
  EXPECT_EQ(run().end, End::kInterrupted);
}

TEST_F(SupervisorTest, ASecondInterruptKills) {
  add("scheduler-0", "trap 'touch asked' TERM; touch ready; while :; do sleep 0.01; done");
  int sent = 0;
  on_tick_ = [&] {
    if ((sent == 0 && exists("ready")) || (sent == 1 && exists("asked"))) {
      ++sent;
      ::raise(SIGINT);
    }
  };
  // Only a kill can end it in time: the scheduler goes on after SIGTERM.
  options_.drain_timeout = 100s;
  const auto result = run();
  EXPECT_EQ(result.end, End::kInterrupted);
  EXPECT_EQ(sent, 2);
}

TEST_F(SupervisorTest, ARestartedSchedulerGetsItsWorkersBackAndStillStops) {
  add("scheduler-0",
      "if [ -e died ]; then while [ ! -e twice ]; do sleep 0.01; done; exit 0; fi; "
      "while [ ! -e home ]; do sleep 0.01; done; touch died; exit 1");
  // Sent home, it has ended with 0; only a restarted scheduler makes the supervisor start it again.
  add("rollout-0", "[ -e home ] && touch twice && exec sleep 100; touch home; exit 0");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
}

// Sent home by a scheduler that died, it ends after the next one was started.
TEST_F(SupervisorTest, AWorkerThatGoesHomeLateIsStartedAgain) {
  options_.parting = 50ms;
  add("scheduler-0",
      "if [ ! -e died ]; then while [ ! -e up ]; do sleep 0.01; done; touch died; exit 1; fi; "
      "touch back; for i in $(seq 1000); do [ -e twice ] && exit 0; sleep 0.01; done; "
      "echo 'error: nobody came back'; exit 2");
  add("rollout-0",
      "[ -e late ] && touch twice && exec sleep 100; touch up; "
      "while [ ! -e back ]; do sleep 0.01; done; touch late; exit 0");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_NE(said_[1].find("rollout-0: exit status 0; starting it again"), std::string::npos)
      << said_[1];
}

TEST_F(SupervisorTest, AWorkerThatGoesHomeALittleBeforeTheSchedulerStaysThere) {
  add("scheduler-0", "while [ ! -e home ]; do sleep 0.01; done; sleep 0.3");
  add("rollout-0", "echo hello; touch home");
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  EXPECT_TRUE(said_.empty());
  EXPECT_EQ(lines_in("rollout-0.log"), 1);
}

TEST_F(SupervisorTest, AWorkerThatAlwaysGoesHomeEndsTheRunInTheEnd) {
  options_.parting = 10ms;
  options_.max_restarts = 2;
  add("scheduler-0", "for i in $(seq 1000); do sleep 0.01; done");
  add("trainer-0", "echo begin; exit 0");
  const auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(result.message.find("died 3 times within 60 s, the last time with exit status 0"),
            std::string::npos)
      << result.message;
}

TEST_F(SupervisorTest, AProgramThatIsMissingIsNamed) {
  options_.max_restarts = 0;
  children_.push_back({{RoleKind::kScheduler, 0}, {"/no/such/program"}, folder_ / "s.log"});
  const auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(result.message.find("cannot run the program"), std::string::npos) << result.message;
}

TEST_F(SupervisorTest, ALogThatCannotBeWrittenIsAFailure) {
  children_.push_back({{RoleKind::kScheduler, 0}, {"/bin/true"}, folder_ / "none" / "s.log"});
  const auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(result.message.find("No such file or directory"), std::string::npos) << result.message;
}

// Nobody reads it: an open that waited would hang the launch.
TEST_F(SupervisorTest, ALogThatIsAPipeIsNamed) {
  ASSERT_EQ(::mkfifo((folder_ / "scheduler-0.log").c_str(), 0600), 0);
  add("scheduler-0", "exit 0");
  ::alarm(20);
  const auto result = run();
  ::alarm(0);
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_EQ(result.message, fmt::format("scheduler-0: cannot write {}: it is a pipe, not a file",
                                        (folder_ / "scheduler-0.log").string()));
}

TEST_F(SupervisorTest, ALogThatBecameAPipeEndsTheRunWhenItsChildIsStartedAgain) {
  add("scheduler-0", "exec sleep 100");
  add("rollout-0", "rm rollout-0.log; mkfifo rollout-0.log; exit 1");
  ::alarm(20);
  const auto result = run();
  ::alarm(0);
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_EQ(result.message, fmt::format("rollout-0: cannot write {}: it is a pipe, not a file",
                                        (folder_ / "rollout-0.log").string()));
}

// kill -9 of the supervisor: nothing survives it. The child holds the write end of a pipe, which
// ends with it.
TEST_F(SupervisorTest, ChildrenDieWithTheirParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(ends[0]);
    auto child = ChildProcess::spawn(
        {"/bin/sh", "-c", fmt::format("echo up >&{}; exec sleep 1000", ends[1])}, "/dev/null");
    ::close(ends[1]);
    ::pause();
    ::_exit(child.ok() ? 0 : 1);
  }
  ::close(ends[1]);
  char text[8];
  ASSERT_EQ(::read(ends[0], text, sizeof text), 3);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  // The end of the pipe: all that held its write end are gone.
  EXPECT_EQ(::read(ends[0], text, sizeof text), 0);
  ::close(ends[0]);
}

// Whoever beats is left alone, however long it takes; what the scheduler says of a quiet run is
// said.
TEST_F(SupervisorTest, AChildWithProgressIsLeftAloneAndAQuietRunIsExplained) {
  // A program under a sanitizer takes most of a second to begin, and has no pulse until then.
  options_.stall = 4s;
  options_.quiet = 60s;
  add("scheduler-0", std::string("exec ") + STATUS_CHILD + " 6000");
  add("trainer-0", kGoesOn);
  const auto result = run();
  EXPECT_EQ(result.end, End::kDone) << result.message;
  EXPECT_EQ(said_,
            (std::vector<std::string>{"nothing has come in for 61 s: all wait for the test"}));
}

// Scripts have no pulse: the one of a child that never beats.
TEST_F(SupervisorTest, AChildThatAlwaysStallsEndsTheRunInTheEnd) {
  // Longer than the window, in which three stalls would never come together.
  options_.stall = 500ms;
  options_.max_restarts = 2;
  options_.window = 250ms;
  add("scheduler-0", kGoesOn);
  add("trainer-0", "echo begin; exec sleep 100");
  const auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(result.message.find("trainer-0 was killed 3 times for making no progress for 0.5 s, "
                                "with less than 0.25 s of work in between. The end of "),
            std::string::npos)
      << result.message;
}

TEST_F(SupervisorTest, StallsAndDeathsAreToldApart) {
  options_.stall = 1s;
  options_.max_restarts = 2;
  add("scheduler-0", kGoesOn);
  add("trainer-0",
      "[ -e second ] && touch third && exec sleep 100; [ -e first ] && touch second && exit 8; "
      "touch first; exit 7");
  auto result = run();
  EXPECT_EQ(result.end, End::kFailed);
  EXPECT_NE(result.message.find("trainer-0 died 2 times and was killed 1 time for making no "
                                "progress for 1 s, with less than 60 s of work in between. "),
            std::string::npos)
      << result.message;
  children_.pop_back();
  add("rollout-0", "[ -e fourth ] && exit 9; touch fourth; exec sleep 100");
  options_.max_restarts = 1;
  result = run();
  EXPECT_NE(result.message.find("rollout-0 died 1 time and was killed 1 time for making no "
                                "progress for 1 s, with less than 60 s of work in between, the "
                                "last time with exit status 9. "),
            std::string::npos)
      << result.message;
}

TEST(QuietWatch, SpeaksOfAttemptsThatFailAndGiveNoSample) {
  QuietWatch watch(30s);
  const auto says = [&](int64_t failed) {
    return watch.look(
        {.line = "no such tool; a waits for b", .quiet = 0s, .failed_in_row = failed});
  };
  EXPECT_EQ(says(7), std::nullopt);
  EXPECT_EQ(says(9),
            "9 attempts have failed, and none has given a sample meanwhile: no such tool; a waits "
            "for b");
  EXPECT_EQ(says(20), std::nullopt);
  EXPECT_NE(says(36), std::nullopt);
  EXPECT_EQ(says(0), std::nullopt);
  EXPECT_NE(says(8), std::nullopt);
}

TEST(QuietWatch, SpeaksEverLessOften) {
  QuietWatch watch(30s);
  std::vector<int> spoken;
  for (int second = 0; second < 300; ++second)
    if (watch.look({"line", std::chrono::seconds(second)})) spoken.push_back(second);
  EXPECT_EQ(spoken, (std::vector<int>{30, 60, 120, 240}));
  EXPECT_FALSE(watch.look({"line", 0s}));
  EXPECT_EQ(watch.look({"line", 31s}), "nothing has come in for 31 s: line");
}

}  // namespace
}  // namespace tailrace
