// Programs as agents, as real processes.
#include "rollout/agent/agent_processes.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "rollout/agent/marked_processes.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using sandbox::AgentProgram;

AgentProgram shell(const std::string& script) {
  AgentProgram program;
  program.run = {"/bin/sh", "-c", script};
  program.run_deadline = 20s;
  return program;
}

class AgentProcessesTest : public ::testing::Test {
 protected:
  fs::path folder() const { return directory_.path() / "agents"; }
  AgentProcesses& agents() {
    if (agents_ == nullptr) agents_ = std::make_unique<AgentProcesses>(folder());
    return *agents_;
  }
  void start(int64_t id, AgentProgram program) {
    agents().start({.seat = id,
                    .episode = id,
                    .program = std::make_shared<const AgentProgram>(std::move(program)),
                    .base_url = "http://127.0.0.1:1/s/k/v1",
                    .api_key = "k",
                    .task = R"({"seed": 17, "row": {"a": 1}, "evaluates": false})",
                    .seed = 17});
  }
  std::map<int64_t, AgentEnd> ends(size_t count) {
    std::map<int64_t, AgentEnd> all;
    for (const Time until = steady_now() + 30s; all.size() < count && steady_now() < until;) {
      for (AgentEnd& end : agents().collect()) all[end.episode] = std::move(end);
      std::this_thread::sleep_for(5ms);
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  AgentEnd end_of(AgentProgram program) {
    start(1, std::move(program));
    return ends(1)[1];
  }
  void expect_nothing_is_left() {
    // One that is stopped ends soon, and its folder behind it.
    const auto is_gone = [&] {
      return marked_processes(mark_of(folder())).empty() &&
             (!fs::exists(folder()) || fs::is_empty(folder()));
    };
    for (const Time until = steady_now() + 10s; !is_gone() && steady_now() < until;)
      std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(marked_processes(mark_of(folder())).empty());
    if (fs::exists(folder())) {
      EXPECT_TRUE(fs::is_empty(folder()));
    }
  }

  TemporaryDirectory directory_;
  std::unique_ptr<AgentProcesses> agents_;
};

TEST_F(AgentProcessesTest, AnAgentFindsThePolicyAndItsTask) {
  const AgentEnd end = end_of(shell(R"sh(
      read task; [ "$task" = "$(cat $TAILRACE_TASK)" ] || exit 3
      [ "$OPENAI_BASE_URL" = http://127.0.0.1:1/s/k/v1 ] && [ "$OPENAI_API_KEY" = k ] || exit 4
      [ "$TAILRACE_SEED" = 17 ] || exit 5
      echo '{"reward": 0.25, "metrics": {"steps": 2}}')sh"));
  EXPECT_EQ(end.failure, "");
  ASSERT_TRUE(end.reward);
  EXPECT_EQ(end.reward->reward, 0.25);
  EXPECT_EQ(end.reward->metrics, (MetricList{{"steps", 2}}));
  EXPECT_GT(end.seconds, 0);
  expect_nothing_is_left();
}

// As in a run whose folder was given by a name that holds in one place alone, which is the default.
TEST_F(AgentProcessesTest, NamesThatAProgramGetsHoldInItsFolder) {
  const fs::path relative = fs::relative(folder());
  ASSERT_TRUE(relative.is_relative());
  agents_ = std::make_unique<AgentProcesses>(relative);
  const AgentEnd end = end_of(shell(R"sh(
      [ "$(cat "$TAILRACE_TASK" | wc -l)" = 0 ] && grep -q seed "$TAILRACE_TASK" || exit 3
      case "$TAILRACE_REWARD_FILE" in /*) ;; *) exit 4;; esac
      echo 0.75 > "$TAILRACE_REWARD_FILE")sh"));
  EXPECT_EQ(end.failure, "");
  ASSERT_TRUE(end.reward);
  EXPECT_EQ(end.reward->reward, 0.75);
  EXPECT_EQ(mark_of(relative), mark_of(folder()));
  expect_nothing_is_left();
}

// Two runs that are called the same, each in its place.
TEST_F(AgentProcessesTest, AFolderOfTheSameNameElsewhereIsNotTouched) {
  const fs::path back = fs::current_path();
  const fs::path one = directory_.path() / "one", other = directory_.path() / "other";
  fs::create_directories(one);
  fs::create_directories(other);
  fs::current_path(one);
  agents_ = std::make_unique<AgentProcesses>("run/agents");
  start(1, shell("sleep 0.5; echo 1"));
  while (marked_processes(mark_of("run/agents")).empty()) std::this_thread::sleep_for(1ms);
  fs::current_path(other);
  {
    AgentProcesses second("run/agents");  // ends what an earlier one has left there
    second.start({.seat = 1,
                  .episode = 1,
                  .program = std::make_shared<const AgentProgram>(shell("echo 1")),
                  .base_url = "u",
                  .api_key = "k",
                  .task = "{}",
                  .seed = 1});
    while (second.collect().empty()) std::this_thread::sleep_for(1ms);
  }
  fs::current_path(back);
  EXPECT_EQ(ends(1)[1].failure, "");
}

TEST_F(AgentProcessesTest, SetupRunAndScoreShareAFolder) {
  AgentProgram program = shell("cat word > answer; echo not a reward");
  program.setup = {"/bin/sh", "-c", "echo hello > word"};
  program.score = {"/bin/sh", "-c", "[ \"$(cat answer)\" = hello ] && echo 1 || echo 0"};
  const AgentEnd end = end_of(program);
  EXPECT_EQ(end.failure, "");
  EXPECT_EQ(end.reward->reward, 1);
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, AFileIsTakenBeforeTheLastLine) {
  const AgentEnd end = end_of(shell("echo 0.75 > $TAILRACE_REWARD_FILE; echo bye"));
  EXPECT_EQ(end.failure, "");
  EXPECT_EQ(end.reward->reward, 0.75);
}

TEST_F(AgentProcessesTest, ACrashIsNoSampleAndSaysItsLastWords) {
  const AgentEnd exits = end_of(shell("echo 1; echo 'no such tool' >&2; exit 7"));
  EXPECT_EQ(exits.failure, "its run has ended with status 7; it says: no such tool");
  EXPECT_FALSE(exits.reward);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(end_of(shell("echo 'raise KeyError(7)' > a.py; exec python3 a.py")).failure,
              "its run has ended with status 1; it says: KeyError: 7 (a.py:1)");
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("Traceback");
  EXPECT_NE(first, log.npos) << log;
  EXPECT_EQ(log.find("Traceback", first + 1), log.npos) << log;
  EXPECT_NE(end_of(shell("kill -SEGV $$")).failure.find("signal 11"), std::string::npos);
  EXPECT_EQ(end_of(shell("exit 0")).failure, "it gives no reward");
  AgentProgram absent = shell("");
  absent.run = {"/no/such/agent"};
  EXPECT_NE(end_of(absent).failure.find("/no/such/agent"), std::string::npos);
  AgentProgram unready = shell("echo 1");
  unready.setup = {"/bin/sh", "-c", "exit 2"};
  EXPECT_EQ(end_of(unready).failure, "its setup has ended with status 2");
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, EachPartHasItsDeadline) {
  AgentProgram program = shell("trap '' TERM INT HUP; sleep 60 & sleep 60");
  program.run_deadline = 200ms;
  const AgentEnd end = end_of(program);
  EXPECT_EQ(end.failure, "its run did not end within 0.2 s");
  EXPECT_LT(end.seconds, 10);
  program = shell("echo 1");
  program.score = {"/bin/sh", "-c", "sleep 60"};
  program.score_deadline = 200ms;
  EXPECT_EQ(end_of(program).failure, "its score did not end within 0.2 s");
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, WhoLeavesAProcessBehindHasFailedAndItIsKilled) {
  // Out of its process group, as a server that an agent starts.
  const std::string leaves = "setsid sleep 60 >/dev/null 2>&1 & ";
  const std::string advice = "Have it end what it starts, or start that in env.agent.setup";
  AgentEnd end = end_of(shell(leaves + "sleep 0.1; echo 'loads' >&2; echo 1"));
  EXPECT_THAT(end.failure, testing::MatchesRegex("it left 1 process behind: 'sleep 60' "
                                                 "\\(pid [0-9]+\\)\\. " +
                                                 advice));
  expect_nothing_is_left();
  end = end_of(shell(leaves + leaves + "sleep 0.1; echo 1"));
  EXPECT_THAT(end.failure, testing::MatchesRegex("it left 2 processes behind, one of them "
                                                 "'sleep 60' \\(pid [0-9]+\\)\\. " +
                                                 advice));
  expect_nothing_is_left();
  // One that fails by itself says why.
  end = end_of(shell(leaves + "sleep 0.1; echo 'no such tool' >&2; exit 7"));
  EXPECT_EQ(end.failure, "its run has ended with status 7; it says: no such tool");
  expect_nothing_is_left();
  // What a setup starts may be there until the end.
  AgentProgram program = shell("kill -0 $(cat pid) && echo 1");
  program.setup = {"/bin/sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $! > pid; sleep 0.1"};
  EXPECT_EQ(end_of(program).failure, "");
  expect_nothing_is_left();
}

// Each in a session of its own; what it is killed by is in sandbox/process/offspring.h.
TEST_F(AgentProcessesTest, WhatHidesIsFound) {
  const std::string hides = R"sh(python3 - <<'end'
import ctypes, os
if os.fork() == 0:
    os.setsid()
    HOW
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    open(PID, "w").write(str(os.getpid()))
    for number in (0, 1, 2): os.close(number)
    import time; time.sleep(1000)
import time
while not os.path.exists(PID): time.sleep(0.002)
end
echo 1)sh";
  const fs::path file = directory_.path() / "pid";
  for (const std::string how : {"pass", "if os.fork() != 0: os._exit(0)"}) {
    fs::remove(file);
    std::string script = hides;
    script.replace(script.find("HOW"), 3, how);
    for (size_t at; (at = script.find("PID")) != script.npos;)
      script.replace(at, 3, "'" + file.string() + "'");
    const std::string failure = end_of(shell(script)).failure;
    EXPECT_THAT(failure, testing::MatchesRegex("it left 1 process behind: '.*python3 -' .*"))
        << how;
    pid_t pid = 0;
    std::ifstream(file) >> pid;
    ASSERT_GT(pid, 0);
    EXPECT_NE(failure.find(fmt::format("(pid {})", pid)), failure.npos) << failure;
    EXPECT_FALSE(fs::exists("/proc/" + std::to_string(pid) + "/exe")) << how;
  }
  expect_nothing_is_left();
}

// Its folder has another name each time, also in the next process of a worker.
TEST_F(AgentProcessesTest, AFolderIsNeverAnothersAndOneThatStaysIsTold) {
  // So many folders, one in the other, that they cannot be removed with the files that are left.
  const AgentProgram deep = shell(
      "python3 -c \"import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(150)]\"; echo 0.25");
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = 100, .rlim_max = limit.rlim_max};
  std::set<fs::path> folders;
  const auto left = [&] {
    for (const auto& entry : fs::directory_iterator(folder())) folders.insert(entry.path());
    return folders.size();
  };
  for (size_t process = 1; process <= 2; ++process) {
    agents_.reset();
    ::setrlimit(RLIMIT_NOFILE, &few);
    EXPECT_EQ(end_of(deep).failure, "");
    EXPECT_EQ(end_of(deep).failure, "");
    const auto notes = agents().take_notes();
    agents_.reset();
    ::setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(left(), 2 * process) << "none was another's";
    ASSERT_FALSE(notes.empty());
    EXPECT_NE(notes[0].find("cannot remove"), notes[0].npos) << notes[0];
  }
  // With enough files they go.
  EXPECT_EQ(end_of(shell("[ -z \"$(ls | grep -v task.json)\" ] && echo 1")).failure, "");
  EXPECT_TRUE(agents().take_notes(/*is_end=*/true).empty());
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, OneThatIsStoppedIsGoneAndNotHeardOf) {
  start(1, shell("sleep 60"));
  start(2, shell("echo 2"));
  EXPECT_EQ(ends(1).begin()->first, 2);
  agents().stop(1);
  expect_nothing_is_left();
  EXPECT_TRUE(agents().collect().empty());
  start(3, shell("sleep 60"));
  for (const Time until = steady_now() + 20s;
       marked_processes(mark_of(folder())).empty() && steady_now() < until;)
    std::this_thread::sleep_for(1ms);
  agents_.reset();
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, WhatAnEarlierWorkerHasLeftIsEnded) {
  fs::create_directories(folder() / "9");
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string mark = std::string(kMarkVariable) + "=" + mark_of(folder()) + "9/run";
    const char* arguments[] = {"/bin/sleep", "60", nullptr};
    const char* environment[] = {mark.c_str(), nullptr};
    ::execve(arguments[0], const_cast<char**>(arguments), const_cast<char**>(environment));
    ::_exit(1);
  }
  while (marked_processes(mark_of(folder())).empty()) std::this_thread::sleep_for(1ms);
  (void)agents();
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(end_of(shell("echo 1")).failure, "");
  EXPECT_FALSE(fs::exists(folder() / "9"));
}

TEST_F(AgentProcessesTest, AProcessPlaysSeveralEpisodes) {
  AgentProgram program = shell(R"sh(
      n=0
      while read task; do
        n=$((n + 1)); echo chatter; echo '{"not": 1}'; echo '{"reward": '$n'}'
        [ $n = 4 ] && exit 0
      done)sh");
  program.episodes = 3;
  const auto shared = std::make_shared<const AgentProgram>(program);
  const auto play = [&](int64_t seat, int64_t episode) {
    agents().start({.seat = seat,
                    .episode = episode,
                    .program = shared,
                    .base_url = "u",
                    .api_key = "k",
                    .task = "{}",
                    .seed = 1});
    return ends(1)[episode];
  };
  for (int64_t episode = 1; episode <= 3; ++episode) {
    const AgentEnd end = play(1, episode);
    EXPECT_EQ(end.failure, "");
    EXPECT_EQ(end.reward->reward, static_cast<double>(episode)) << "the same process";
    EXPECT_EQ(end.waits, episode < 3);
  }
  expect_nothing_is_left();
  EXPECT_EQ(play(2, 4).reward->reward, 1) << "another one";
  agents().stop(2);
  // What was written to the file for an earlier task is not the reward of a later one.
  program.run = {"/bin/sh", "-c",
                 "read task; echo 0.5 > $TAILRACE_REWARD_FILE; echo '{\"reward\": 7}'; read task; "
                 "exit 0"};
  const auto writing = std::make_shared<const AgentProgram>(program);
  for (int64_t episode = 10; episode < 12; ++episode) {
    agents().start({.seat = 5,
                    .episode = episode,
                    .program = writing,
                    .base_url = "u",
                    .api_key = "k",
                    .task = "{}",
                    .seed = 1});
    EXPECT_EQ(ends(1)[episode].failure, episode == 10 ? "" : "it gives no reward");
  }
  // One that is lost while it waits is replaced, and one that is lost in an episode fails it.
  program.run = {"/bin/sh", "-c", "read task; echo '{\"reward\": 7}'; exit 0"};
  const auto short_lived = std::make_shared<const AgentProgram>(program);
  for (int64_t episode = 5; episode < 7; ++episode) {
    agents().start({.seat = 3,
                    .episode = episode,
                    .program = short_lived,
                    .base_url = "u",
                    .api_key = "k",
                    .task = "{}",
                    .seed = 1});
    EXPECT_EQ(ends(1)[episode].reward->reward, 7);
    expect_nothing_is_left();  // the folder goes when its end is known
  }
  agents().stop(3);
  program.run = {"/bin/sh", "-c", "read task; echo '{\"reward\": 7}'; read task; exit 5"};
  const auto crashing = std::make_shared<const AgentProgram>(program);
  for (int64_t episode = 7; episode < 9; ++episode) {
    agents().start({.seat = 4,
                    .episode = episode,
                    .program = crashing,
                    .base_url = "u",
                    .api_key = "k",
                    .task = "{}",
                    .seed = 1});
    EXPECT_EQ(ends(1)[episode].failure, episode == 7 ? "" : "its run has ended with status 5");
  }
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, ManyRunAtOnce) {
  for (int64_t id = 1; id <= 40; ++id)
    start(id, shell(id % 5 == 0 ? "exit 1" : "sleep 0.05; echo " + std::to_string(id)));
  for (auto& [id, end] : ends(40)) {
    EXPECT_EQ(end.failure.empty(), id % 5 != 0) << end.failure;
    if (id % 5 == 0) continue;
    EXPECT_EQ(end.reward->reward, static_cast<double>(id));
  }
  expect_nothing_is_left();
}

TEST_F(AgentProcessesTest, OutputWithoutEndHoldsNobodyUp) {
  AgentProgram loud = shell("yes; echo 1");
  loud.run_deadline = 1s;
  start(1, loud);
  start(2, shell("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo 2"));
  auto all = ends(2);
  EXPECT_EQ(all[2].reward->reward, 2);
  EXPECT_NE(all[1].failure, "");
}

}  // namespace
}  // namespace tailrace
