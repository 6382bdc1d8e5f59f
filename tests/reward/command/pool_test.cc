// A pool asks real programs, some of which do what programs of somebody else do.
#include "reward/command/pool.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "sandbox/launcher/launcher.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::HasSubstr;

// Longer than a loaded machine takes to start Python.
constexpr Time kPlenty = 60s;

// What every program of these tests begins with. `say` answers an episode.
const std::string kPython = R"(
import json, os, subprocess, sys, time
def say(episode, reward, **more):
    print(json.dumps({"id": episode["id"], "reward": reward, **more}))
)";

// Waits for what another process does.
bool comes_true(const std::function<bool()>& condition) {
  for (const Time until = steady_now() + kPlenty; steady_now() < until; ::usleep(10'000))
    if (condition()) return true;
  return condition();
}

class CommandPoolTest : public testing::Test {
 protected:
  sandbox::CommandStart python(const std::string& text) {
    return {.words = {"python3", folder_.write("reward.py", kPython + text).string()}};
  }
  sandbox::CommandStart shell(const std::string& text) {
    return {.words = {"/bin/sh", folder_.write("reward.sh", text).string()}};
  }

  static std::string number(int n) { return fmt::format("\"response\":\"{}\"", n); }

  // All at once, as the threads of a reward worker ask.
  static std::vector<Result<Score>> ask_all(CommandPool& pool,
                                            const std::vector<std::string>& episodes,
                                            Time budget = kPlenty) {
    std::vector<std::future<Result<Score>>> asked;
    for (const std::string& episode : episodes)
      asked.push_back(
          std::async(std::launch::async, [&, episode] { return pool.ask(episode, budget); }));
    std::vector<Result<Score>> scores;
    for (auto& one : asked) scores.push_back(one.get());
    return scores;
  }

  static void expect_reward(const Result<Score>& score, double reward) {
    ASSERT_TRUE(score) << score.failure().message;
    EXPECT_EQ(score.value().reward, reward);
  }
  static void expect_failure(const Result<Score>& score, const std::string& reason) {
    ASSERT_FALSE(score) << score.value().reward;
    EXPECT_THAT(score.failure().message, HasSubstr(reason));
  }

  // Where the loop over the processes gets no time itself, who asked says so in its place.
  static void expect_late(const Result<Score>& score, const std::string& budget) {
    ASSERT_FALSE(score) << score.value().reward;
    EXPECT_THAT(score.failure().message,
                testing::AnyOf(HasSubstr("has not answered an episode within " + budget),
                               HasSubstr("has not answered a batch within " + budget),
                               HasSubstr("has no verdict within " + budget)));
  }

  std::set<std::string> lines_of(const std::string& name) {
    std::set<std::string> lines;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }

  TemporaryDirectory folder_;
};

TEST_F(CommandPoolTest, AProgramThatReadsLineByLineScores) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    episode = json.loads(line)
    say(episode, float(episode["response"]) / 2, metrics={"half": True, "x.y": -1.5})
)"),
                   {});
  for (int i = 0; i < 3; ++i) {
    const auto score = pool.ask(number(i), kPlenty);
    expect_reward(score, i / 2.0);
    EXPECT_EQ(score.value().metrics, (MetricList{{"half", 1}, {"x.y", -1.5}}));
  }
}

TEST_F(CommandPoolTest, AProcessLivesOnBetweenBatches) {
  CommandPool pool(python(fmt::format(R"(
open("{}/pids", "a").write(str(os.getpid()) + "\n")
for line in sys.stdin:
    say(json.loads(line), 1)
)",
                                      folder_.path().string())),
                   {.batch = 8, .at_once = 8});
  for (int round = 0; round < 4; ++round)
    for (const auto& score : ask_all(pool, {number(1), number(2), number(3), number(4)}))
      expect_reward(score, 1);
  EXPECT_EQ(lines_of("pids").size(), 1u);
}

TEST_F(CommandPoolTest, WithABatchOfOneEachEpisodeHasAProcess) {
  // Each waits until four have been started, so that fewer would be no verdict.
  CommandPool pool(python(fmt::format(R"(
folder = "{}/here"
os.makedirs(folder, exist_ok=True)
open(folder + "/" + str(os.getpid()), "w")
for line in sys.stdin:
    while len(os.listdir(folder)) < 4: time.sleep(0.01)
    say(json.loads(line), 1)
)",
                                      folder_.path().string())),
                   {.batch = 1, .at_once = 4});
  for (const auto& score : ask_all(pool, {number(1), number(2), number(3), number(4)}))
    expect_reward(score, 1);
}

TEST_F(CommandPoolTest, AnswersComeInAnyOrderAndCutInPieces) {
  // It answers a batch from its end, byte by byte, and works on the first episode while the others
  // gather.
  CommandPool pool(python(fmt::format(R"(
rest = b""
while piece := os.read(0, 1 << 16):
    *lines, rest = (rest + piece).split(b"\n")
    episodes = [json.loads(line) for line in lines]
    if any(episode["response"] == "0" for episode in episodes): time.sleep(2)
    with open("{}/sizes", "a") as sizes: print(len(episodes), file=sizes)
    for episode in reversed(episodes):
        for c in json.dumps({{"id": episode["id"], "reward": int(episode["response"])}}) + "\n":
            sys.stdout.write(c)
            sys.stdout.flush()
)",
                                      folder_.path().string())),
                   {.batch = 8, .at_once = 8});
  expect_reward(pool.ask(number(7), kPlenty), 7);
  auto first = std::async(std::launch::async, [&] { return pool.ask(number(0), kPlenty); });
  ::usleep(500'000);
  const auto scores = ask_all(pool, {number(1), number(2), number(3), number(4)});
  expect_reward(first.get(), 0);
  for (int i = 0; i < 4; ++i) expect_reward(scores[static_cast<size_t>(i)], i + 1);
  EXPECT_TRUE(lines_of("sizes").contains("4"));
}

TEST_F(CommandPoolTest, ALargeEpisodeAndALargeAnswerPassWhileBothSidesWrite) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    episode = json.loads(line)
    say(episode, len(episode["response"]), note="x" * 900000)
)"),
                   {});
  const std::string large(3 << 20, 'a');
  const std::vector<std::string> episodes(6, "\"response\":\"" + large + "\"");
  for (const auto& score : ask_all(pool, episodes)) expect_reward(score, 3 << 20);
}

TEST_F(CommandPoolTest, WhatIsNoVerdictIsNeverAReward) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    episode = json.loads(line)
    what = episode["response"]
    answer = {"id": episode["id"]}
    if what == "nan": answer["reward"] = float("nan")
    if what == "infinity": answer["reward"] = float("-inf")
    if what == "text": answer["reward"] = "1.0"
    if what == "error": answer["error"] = "no such\0 row"
    if what == "metric": answer.update(reward=1, metrics={"bad": float("nan")})
    if what == "name": answer.update(reward=1, metrics={"a/b": 1})
    if what == "good": answer["reward"] = True
    if what == "largest": answer["reward"] = -1e30
    if what == "huge": answer["reward"] = 1e308
    if what == "many": answer.update(reward=1, metrics={"many": 10**31})
    if what == "wide": print('{"id": %d, "reward": -1e400, "say": "NaN"}' % episode["id"]); continue
    print(json.dumps(answer))
)"),
                   {.batch = 16, .at_once = 16});
  const auto scores =
      ask_all(pool, {"\"response\":\"nan\"", "\"response\":\"infinity\"", "\"response\":\"text\"",
                     "\"response\":\"error\"", "\"response\":\"metric\"", "\"response\":\"name\"",
                     "\"response\":\"none\"", "\"response\":\"good\"", "\"response\":\"largest\"",
                     "\"response\":\"huge\"", "\"response\":\"many\"", "\"response\":\"wide\""});
  expect_failure(scores[0], "no finite number");
  expect_failure(scores[1], "no finite number");
  expect_failure(scores[2], "no finite number");
  expect_failure(scores[3], "no such\\x00 row");
  expect_failure(scores[4], "\"bad\"");
  expect_failure(scores[5], "\"a/b\"");
  expect_failure(scores[6], "no \"reward\"");
  expect_reward(scores[7], 1);
  expect_reward(scores[8], -1e30);
  expect_failure(scores[9], "is 1e+308, which is no finite number of at most 1e+30 in size");
  expect_failure(scores[10], "\"many\"");
  expect_failure(scores[11], "infinite, which is no finite number");
}

// The one that it dies of has no verdict; the others of its batch have theirs.
TEST_F(CommandPoolTest, ACrashTakesNoOtherEpisodeAlong) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    episode = json.loads(line)
    if episode["response"] == "3":
        print("cannot bear a 3", file=sys.stderr)
        os.kill(os.getpid(), 11)
    say(episode, 1)
)"),
                   {.batch = 8, .at_once = 8});
  std::vector<std::string> episodes;
  for (int i = 0; i < 8; ++i) episodes.push_back(number(i));
  const auto scores = ask_all(pool, episodes);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i != 3) expect_reward(scores[i], 1);
  }
  expect_failure(scores[3], "was ended by signal 11");
  expect_failure(scores[3], "cannot bear a 3");
  expect_reward(pool.ask(number(9), kPlenty), 1);  // by another process
}

TEST_F(CommandPoolTest, AHangEndsAtTheDeadlineWithTheWholeProcessGroup) {
  CommandPool pool(shell(fmt::format(R"(
sleep 1000 &
echo $! > {0}/left
while read line; do sleep 1000; done
)",
                                     folder_.path().string())),
                   {});
  const Time begin = steady_now();
  expect_late(pool.ask(number(1), 2s), "2 s");
  EXPECT_LT(steady_now() - begin, 30s);
  const pid_t left = std::stoi(*lines_of("left").begin());
  EXPECT_TRUE(comes_true(
      [&] { return !fs::exists(fmt::format("/proc/{}/exe", left)) || ::kill(left, 0) != 0; }));
}

// As one that loads a model. The second episode waits as long, and is not asked in a process more.
TEST_F(CommandPoolTest, AStartDoesNotCount) {
  CommandPool pool(python(fmt::format(R"(
open("{}/pids", "a").write(str(os.getpid()) + "\n")
time.sleep(13)
for line in sys.stdin: say(json.loads(line), 1)
)",
                                      folder_.path().string())),
                   {.batch = 8, .at_once = 8, .start = kPlenty});
  testing::internal::CaptureStderr();
  for (const auto& score : ask_all(pool, {number(1), number(2)}, 3s)) expect_reward(score, 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("python3 reward.py: 0 of 1 processes have started\n"));
  EXPECT_EQ(lines_of("pids").size(), 1u);
}

// Nor is it a reason for another process, however short the deadline is beside it.
TEST_F(CommandPoolTest, ASlowStartIsWaitedForAndItsProcessKept) {
  CommandPool pool(python(fmt::format(R"(
open("{}/pids", "a").write(str(os.getpid()) + "\n")
time.sleep(6)
for line in sys.stdin: say(json.loads(line), 1)
)",
                                      folder_.path().string())),
                   {.batch = 8, .at_once = 8, .start = 12s});
  for (int round = 0; round < 3; ++round)
    for (const auto& score : ask_all(pool, {number(1), number(2), number(3)}, 8s))
      expect_reward(score, 1);
  EXPECT_EQ(lines_of("pids").size(), 1u);
}

// Its episode goes to the one that has started, which lives on.
TEST_F(CommandPoolTest, AProcessThatStillStartsEndsBeforeOneThatIsIdle) {
  CommandPool pool(python(fmt::format(R"(
pids = "{}/pids"
open(pids, "a").write(str(os.getpid()) + "\n")
def second(): return len(open(pids).readlines()) > 1
if second(): time.sleep(1000)
for line in sys.stdin:
    episode = json.loads(line)
    if episode["response"] == "0":
        open("{}/works", "w").write("yes\n")
        while not second(): time.sleep(0.01)
    say(episode, 1)
)",
                                      folder_.path().string(), folder_.path().string())),
                   {.batch = 8, .at_once = 8, .start = 5s});
  expect_reward(pool.ask(number(1), kPlenty), 1);
  auto slow = std::async(std::launch::async, [&] { return pool.ask(number(0), kPlenty); });
  ASSERT_TRUE(comes_true([&] { return !lines_of("works").empty(); }));
  expect_reward(pool.ask(number(2), 8s), 1);
  expect_reward(slow.get(), 1);
  expect_reward(pool.ask(number(3), kPlenty), 1);
  EXPECT_EQ(lines_of("pids").size(), 2u);
}

// However long the episode that it is given has waited: it came while the first process started.
TEST_F(CommandPoolTest, AHelperHasTheTimeOfAStartFromItsOwnBeginning) {
  CommandPool pool(shell(R"(sleep 2.5
while read -r line; do
  id=${line#*:}; echo "{\"id\":${id%%,*},\"reward\":1}"; sleep 0.02
done)"),
                   {.batch = 2, .at_once = 2, .start = 3500ms});
  std::atomic<int> num_lost = 0;
  std::vector<std::future<void>> askers;
  // Always more episodes than the first process answers in time, so that a second one is wanted.
  for (int i = 0; i < 40; ++i)
    askers.push_back(std::async(std::launch::async, [&] {
      for (const Time until = steady_now() + 7s; steady_now() < until;) {
        const auto score = pool.ask(number(1), 400ms);
        num_lost += !score && score.failure().message.find("for its start") != std::string::npos;
      }
    }));
  for (auto& one : askers) one.get();
  EXPECT_EQ(num_lost, 0) << "killed while it started";
}

TEST_F(CommandPoolTest, AStartHasADeadlineOfItsOwn) {
  CommandPool pool(shell("sleep 1000"), {.batch = 8, .at_once = 1, .start = 750ms});
  const auto scores = ask_all(pool, {number(1), number(2)}, 250ms);
  int num_asked = 0;
  for (const auto& score : scores) {
    ASSERT_FALSE(score);
    EXPECT_THAT(score.failure().message,
                testing::AnyOf(
                    HasSubstr("has not answered an episode within 1 s, 0.75 s of which are for its "
                              "start (reward.start_timeout_s; a program that loads a model may "
                              "need more)"),
                    HasSubstr("no process of 'sh reward.sh' has started within 1 s "
                              "(reward.start_timeout_s; ")));
    num_asked += score.failure().message.find("has not answered") != std::string::npos;
  }
  EXPECT_EQ(num_asked, 1);
}

// Behind its start a process has the deadline of every other.
TEST_F(CommandPoolTest, AHangBehindAStartIsLateAsBefore) {
  CommandPool pool(python(R"(
say(json.loads(sys.stdin.readline()), 1)
time.sleep(1000)
)"),
                   {.batch = 1, .at_once = 1, .start = kPlenty});
  expect_reward(pool.ask(number(1), kPlenty), 1);
  expect_late(pool.ask(number(2), 500ms), "0.5 s");
}

TEST_F(CommandPoolTest, OneThatHangsLeavesTimeForTheOthersOfItsBatch) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    episode = json.loads(line)
    if episode["response"] == "0": time.sleep(1000)
    say(episode, 1)
)"),
                   {.batch = 8, .at_once = 8});
  // A process that is there is not waited for.
  expect_reward(pool.ask(number(1), kPlenty), 1);
  std::vector<std::string> episodes;
  for (int i = 0; i < 4; ++i) episodes.push_back(number(i));
  const auto scores = ask_all(pool, episodes, 12s);
  expect_late(scores[0], "12 s");
  for (size_t i = 1; i < scores.size(); ++i) expect_reward(scores[i], 1);
}

TEST_F(CommandPoolTest, WhatIsNoAnswerEndsTheProcessAndIsShown) {
  const std::pair<const char*, const char*> kinds[] = {
      {"print('debug: here')", "no JSON object: 'debug: here'"},
      {"print('[1, 2]')", "no JSON object"},
      {"print('{\"reward\": 1}')", "without the id"},
      {"print('{\"id\": 4711, \"reward\": 1}')", "the id 4711, which it was not asked about"},
      {"print('[' * 1000000)", "nested more than 100 deep"},
      // Whole, and with a part that a message would show.
      {"print('{\"id\": 0, \"error\": ' + '[' * 400000 + ']' * 400000 + '}')",
       "nested more than 100 deep"},
      {"sys.stdout.buffer.write(bytes(range(128, 256)) + b'\\n')", "no JSON object"},
      {"sys.stdout.write('x' * 3000000); time.sleep(1000)", "without an end of line"},
      {"os.close(1); time.sleep(1000)", "closed its stdout and goes on"},
      {"sys.exit(3)", "has ended with status 3 before its answer"}};
  for (const auto& [act, reason] : kinds) {
    CommandPool pool(python(fmt::format("for line in sys.stdin:\n    {}\n", act)), {});
    expect_failure(pool.ask(number(1), kPlenty), reason);
  }
}

// What a program writes behind its answer is heard of by whoever it is asked about next, whether
// that is before or after it comes.
TEST_F(CommandPoolTest, AnEpisodeIsAnsweredOnce) {
  for (const char* pause : {"0", "0.5"}) {
    CommandPool pool(python(fmt::format(R"(
for line in sys.stdin:
    say(json.loads(line), 1); time.sleep({}); say(json.loads(line), 2)
)",
                                        pause)),
                     {});
    for (int i = 0; i < 2; ++i) {
      expect_reward(pool.ask(number(0), kPlenty), 1);
      expect_failure(pool.ask(number(1), kPlenty), "answers the id ");
      // By another process.
    }
    expect_reward(pool.ask(number(0), kPlenty), 1);
  }
}

TEST_F(CommandPoolTest, ALostProcessIsALineOfTheLog) {
  testing::internal::CaptureStderr();
  {
    CommandPool pool(python(R"(
for line in sys.stdin:
    what = json.loads(line)["response"]
    if what == "killed": os.kill(os.getpid(), 9)
    if what == "ended": sys.exit(3)
    time.sleep(1000)
)"),
                     {});
    for (const char* what : {"killed", "ended"})
      (void)pool.ask(fmt::format("\"response\":\"{}\"", what), kPlenty);
    (void)pool.ask(number(1), 2s);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("python3 reward.py: a process of it was ended by signal 9"));
  EXPECT_THAT(log, HasSubstr("python3 reward.py: a process of it has ended with status 3"));
  EXPECT_THAT(log, HasSubstr("python3 reward.py: a process of it has not answered an episode"));
}

TEST_F(CommandPoolTest, ATracebackIsToldOnce) {
  testing::internal::CaptureStderr();
  {
    CommandPool pool(python(R"(
for line in sys.stdin: json.loads(line)["answer"]
)"),
                     {});
    for (int i = 0; i < 3; ++i) {
      const auto score = pool.ask(number(1), kPlenty);
      expect_failure(score, "; its stderr ends: KeyError: 'answer' (reward.py:");
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("Traceback");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("Traceback", first + 1), std::string::npos) << log;
}

TEST_F(CommandPoolTest, LinesAboutLostProcessesAreBounded) {
  testing::internal::CaptureStderr();
  {
    CommandPool pool(shell("read line; exit 1"), {});
    for (int i = 0; i < 30; ++i) (void)pool.ask(number(1), kPlenty);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const auto num_lines = std::ranges::count(log, '\n');
  EXPECT_GE(num_lines, 20);
  EXPECT_LT(num_lines, 45);  // of 60
}

// A process that lives goes on with the file that it has read; no other starts with another one.
TEST_F(CommandPoolTest, NoProcessStartsWithAFileThatHasChanged) {
  sandbox::CommandStart command = python(R"(
for line in sys.stdin:
    if json.loads(line)["response"] == "3": os.abort()
    say(json.loads(line), 0.5)
)");
  const fs::path data = folder_.write("table.txt", "1");
  command.words.push_back(data.string());
  CommandPool pool(with_digests(command), {});
  const auto lose = [&] { (void)pool.ask(number(3), kPlenty); };
  expect_reward(pool.ask(number(1), kPlenty), 0.5);
  for (const fs::path& file : {fs::path(command.words[1]), data}) {
    const std::string before = read_file(file).value();
    std::ofstream(file, std::ios::app) << "# another one\n";
    testing::internal::CaptureStderr();
    lose();
    for (int i = 0; i < 2; ++i)
      expect_failure(
          pool.ask(number(1), kPlenty),
          file.string() + " has changed since the run began; put it back, or start a new run");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no process was started: "));
    fs::remove(file);
    expect_failure(pool.ask(number(1), kPlenty), file.string() + " is gone since the run began");
    std::ofstream(file) << before;
    expect_reward(pool.ask(number(1), kPlenty), 0.5);
  }
}

TEST_F(CommandPoolTest, ALastLineNeedsNoEndAndAProgramMayEndBetweenBatches) {
  CommandPool pool(python(R"(
episode = json.loads(sys.stdin.readline())
sys.stdout.write(json.dumps({"id": episode["id"], "reward": 5}))
)"),
                   {});
  for (int i = 0; i < 3; ++i) expect_reward(pool.ask(number(i), kPlenty), 5);
}

TEST_F(CommandPoolTest, AFloodOfErrorsIsReadAndBounded) {
  CommandPool pool(python(R"(
for line in sys.stdin:
    for i in range(20000): sys.stderr.write("complaint %d " % i + "y" * 1000 + "\n")
    say(json.loads(line), 1)
)"),
                   {});
  testing::internal::CaptureStderr();
  expect_reward(pool.ask(number(1), kPlenty), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("python3 reward.py: complaint 0 yyy"));
  EXPECT_LT(log.size(), 100'000u);
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 500u);
}

TEST_F(CommandPoolTest, AProgramThatIsNotThereIsNamed) {
  CommandPool pool({.words = {"no-such-program-7", "x"}}, {});
  expect_failure(pool.ask(number(1), kPlenty), "there is no program no-such-program-7");
  const fs::path file = folder_.write("plain.txt", "#!/bin/sh\n");
  CommandPool other({.words = {file.string()}}, {});
  expect_failure(other.ask(number(1), kPlenty), "chmod +x");
}

TEST_F(CommandPoolTest, NothingIsLeftBehindAPool) {
  std::set<std::string> pids;
  {
    CommandPool pool(shell(fmt::format(R"(
sleep 1000 & echo $! >> {0}/pids; echo $$ >> {0}/pids
while read line; do id=${{line#*:}}; echo "{{\"id\": ${{id%%,*}}, \"reward\": 1}}"; done
)",
                                       folder_.path().string())),
                     {.batch = 1, .at_once = 3});
    for (const auto& score : ask_all(pool, {number(1), number(2), number(3)}))
      expect_reward(score, 1);
    pids = lines_of("pids");
    ASSERT_GE(pids.size(), 2u);
  }
  for (const std::string& pid : pids)
    EXPECT_TRUE(comes_true([&] {
      return !fs::exists("/proc/" + pid + "/exe") || ::kill(std::stoi(pid), 0) != 0;
    })) << pid;
}

TEST_F(CommandPoolTest, APoolThatEndsAnswersWhoWaits) {
  auto pool = std::make_unique<CommandPool>(shell("while read line; do sleep 1000; done"),
                                            CommandPoolOptions{});
  CommandPool& asked = *pool;
  auto answer = std::async(std::launch::async, [&] { return asked.ask(number(1), kPlenty); });
  ::usleep(200'000);
  pool.reset();
  expect_failure(answer.get(), "ending");
}

TEST_F(CommandPoolTest, InASandboxItSeesItsFilesAndNoneOfOurs) {
  if (const auto can = sandbox::check_isolation(); !can) GTEST_SKIP() << can.failure().message;
  const fs::path secret = folder_.write("secret.txt", "42"),
                 table = folder_.write("table.txt", "7");
  sandbox::CommandStart command = python(fmt::format(R"(
import socket
def fails(act):
    try: act()
    except OSError: return True
    return False
for line in sys.stdin:
    say(json.loads(line), int(open(sys.argv[1]).read()),
        metrics=dict(hidden=fails(lambda: open("{}")),
                     offline=fails(lambda: socket.create_connection(("127.0.0.1", 1), 1)),
                     clean="TAILRACE_DATA" not in os.environ))
)",
                                                     secret.string()));
  command.words[0] = "/usr/bin/python3";
  if (!fs::exists(command.words[0])) GTEST_SKIP() << "no " << command.words[0];
  command.words.push_back(table.string());
  command.is_isolated = true;
  CommandPool pool(command, {});
  for (int i = 0; i < 2; ++i) {
    const auto score = pool.ask(number(1), kPlenty);
    expect_reward(score, 7);
    EXPECT_EQ(score.value().metrics, (MetricList{{"clean", 1}, {"hidden", 1}, {"offline", 1}}));
  }
}

TEST_F(CommandPoolTest, InASandboxAHangAndACrashEndAsElsewhere) {
  if (const auto can = sandbox::check_isolation(); !can) GTEST_SKIP() << can.failure().message;
  const fs::path file = folder_.write("reward.sh", R"(#!/bin/sh
sleep 1000 &
while read line; do
  case "$line" in *crash*) kill -9 $$;; *hang*) sleep 1000;; esac
  id=${line#*:}; echo "{\"id\": ${id%%,*}, \"reward\": 1}"
done
)");
  fs::permissions(file, fs::perms::owner_exec, fs::perm_options::add);
  // The program itself is a file of ours.
  CommandPool pool({.words = {file.string()}, .is_isolated = true}, {});
  expect_reward(pool.ask(number(1), kPlenty), 1);
  expect_failure(pool.ask("\"response\":\"crash\"", kPlenty), "was ended by signal 9");
  expect_late(pool.ask("\"response\":\"hang\"", 2s), "2 s");
  expect_reward(pool.ask(number(1), kPlenty), 1);
}

}  // namespace
}  // namespace tailrace
