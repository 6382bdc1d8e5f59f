// Real programs play environments, some of which do what programs of somebody else do.
#include "sandbox/command/command_environment.h"

#include <csignal>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::HasSubstr;

// Longer than a loaded machine takes to start Python.
constexpr Time kPlentyOfTime = 60s;

// An environment whose third action ends it; `STEP` may do something else, before.
const std::string kCounter = R"(
import json, os, random, signal, subprocess, sys, time
steps, seed, pids = 0, 0, "FOLDER/pids"
with open(pids, "a") as file: print(os.getpid(), file=file)
for line in sys.stdin:
    call = json.loads(line)
    kind, answer = call["call"], {"unsupported": True}
    if kind == "info": answer = {"name": "counter", "max_turns": 3, "stop_strings": ["\n"], "max_action_tokens": 4}
    if kind == "reset":
        steps, seed = 0, call["seed"] % 100
        answer = {"text": f"{seed} begins\n"}
    if kind == "step":
        steps += 1
        STEP
        answer = {"text": f"{seed}: {steps} {len(call['action'])}\n", "reward": 0.25}
        if steps == 3: answer = {"reward": seed / 100, "terminated": True, "metrics": {"success": 1}}
    if kind == "sample_action": answer = {"action": str(call["random"] % 7) + "\n"}
    print(json.dumps(answer), flush=True)
)";

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

class CommandEnvironmentTest : public testing::Test {
 protected:
  std::shared_ptr<UsedProgram> program(const std::string& text,
                                       const CommandLimits& limits = {.call = kPlentyOfTime}) {
    const std::string whole = replaced(text, "FOLDER", folder_.path().string());
    return std::make_shared<UsedProgram>(
        CommandStart{.words = {"python3", folder_.write("env.py", whole).string()}}, limits);
  }
  std::shared_ptr<const EnvironmentSource> counter(const std::string& step = "pass",
                                                   const CommandLimits& limits = {
                                                       .call = kPlentyOfTime}) {
    return UsedProgram::source(program(replaced(kCounter, "STEP", step), limits), {});
  }

  std::vector<pid_t> pids() const {
    std::vector<pid_t> found;
    std::ifstream file(folder_ / "pids");
    for (pid_t pid; file >> pid;) found.push_back(pid);
    return found;
  }

  // What becomes of the first step of an episode.
  static std::string fault_of(const EnvironmentSource& source) {
    const auto environment = source.open();
    const auto first = environment->reset({.seed = 7});
    EXPECT_TRUE(first) << first.failure().message;
    const auto result = environment->step("1\n");
    return result ? "" : result.failure().message;
  }

  TemporaryDirectory folder_;
};

// Waits for what another process does.
bool will_be(const std::function<bool()>& condition) {
  for (const Time until = steady_now() + kPlentyOfTime; steady_now() < until; ::usleep(10'000))
    if (condition()) return true;
  return condition();
}

bool has_gone(pid_t pid) {
  const auto status = read_file(fmt::format("/proc/{}/stat", pid));
  return !status || status.value().find(") Z") != std::string::npos;
}

TEST_F(CommandEnvironmentTest, KeepsTheContract) {
  const auto source = counter();
  check_environment({.make = [&] { return source->open(); }, .episodes = 8});
}

TEST_F(CommandEnvironmentTest, TheExampleKeepsTheContract) {
  const auto guess = std::make_shared<UsedProgram>(
      CommandStart{.words = {"python3", TAILRACE_SOURCE_DIR "/examples/environments/guess.py"}},
      CommandLimits{.call = kPlentyOfTime});
  const auto source = UsedProgram::source(guess, {{"top", "4"}, {"guesses", "3"}});
  EXPECT_EQ(source->info().max_turns, 3);
  check_environment({.make = [&] { return source->open(); }, .episodes = 8});
}

TEST_F(CommandEnvironmentTest, AProcessPlaysOneEpisodeAfterTheOther) {
  const auto source = counter();
  for (int i = 0; i < 5; ++i) {
    const auto environment = source->open();
    ASSERT_EQ(environment->reset({.seed = 3}).value().text, "3 begins\n");
    EXPECT_EQ(environment->step("abc").value().observation.text, "3: 1 3\n");
  }
  // One of them was asked for info.
  EXPECT_EQ(pids().size(), 2u);
}

TEST_F(CommandEnvironmentTest, ManyEpisodesPlayAtOnceAndNoThreadWaits) {
  constexpr int kEpisodes = 40;
  const auto source = counter();
  std::vector<std::unique_ptr<RemoteEnvironment>> playing;
  const auto all = [&](auto call_of) {
    std::vector<std::future<Result<StepResult>>> answers;
    for (int i = 0; i < kEpisodes; ++i) {
      auto answer = std::make_shared<std::promise<Result<StepResult>>>();
      answers.push_back(answer->get_future());
      playing[static_cast<size_t>(i)]->begin(call_of(i), [answer](Result<StepResult> result) {
        answer->set_value(std::move(result));
      });
    }
    std::vector<StepResult> results;
    for (auto& answer : answers) {
      auto result = answer.get();
      EXPECT_TRUE(result) << result.failure().message;
      results.push_back(result ? std::move(result).value() : StepResult{});
    }
    return results;
  };
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kEpisodes; ++i) playing.push_back(source->open_remote());
    const auto first = all([&](int i) {
      return EnvironmentCall{.kind = EnvironmentCall::Kind::kReset,
                             .task = {.seed = static_cast<uint64_t>(i)}};
    });
    std::vector<StepResult> last;
    for (int step = 0; step < 3; ++step)
      last = all(
          [](int) { return EnvironmentCall{.kind = EnvironmentCall::Kind::kStep, .action = "x"}; });
    for (int i = 0; i < kEpisodes; ++i) {
      EXPECT_EQ(first[static_cast<size_t>(i)].observation.text, fmt::format("{} begins\n", i));
      EXPECT_EQ(last[static_cast<size_t>(i)].reward, i / 100.0);
    }
    playing.clear();
  }
  EXPECT_EQ(pids().size(), kEpisodes + 1u) << "the second round has the processes of the first";
}

TEST_F(CommandEnvironmentTest, WhatIsNoAnswerIsAFailureWithItsReason) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"os.abort()", "was ended by signal 6 (Aborted), in step()"},
      {"sys.exit('no more')", "has ended with status 1, in step(); its stderr ends: no more"},
      {"sys.exit(0)", "has ended with status 0, in step()"},
      {"os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal 9 (Killed), in step()"},
      // Alone, and with the answer behind it.
      {"print('debugging', flush=True); time.sleep(1000)", "no JSON object: 'debugging'. What is"},
      {"print('debugging')",
       "wrote a line to stdout that is no JSON object: 'debugging'. What is not an answer belongs "
       "on stderr, in step()"},
      {"print('{\"text\": ')", "no JSON object: '{\"text\": '. What is not an answer"},
      {"print('{\"reward\": 0}\\n\\ndone\\nand more')",
       "wrote a line to stdout that nobody asked for: 'done'. What is not an answer belongs on "
       "stderr, in step()"},
      {"print('{\"text\": \"half', end='', flush=True); sys.exit(0)", "has ended with status 0"},
      {"print('x' * (17 << 20))", "wrote more than 16777216 bytes to stdout without an answer"},
      {"print('[' * 1000, flush=True); time.sleep(1000)", "nested more than 100 deep"},
      {"print(json.dumps({'text': 'x' * (1 << 20) + 'x', 'reward': 0})); continue",
       "an observation of 1048577 bytes; it may have 1048576"},
      {"print(json.dumps({'text': 1, 'reward': 0})); continue", "the \"text\" 1, which is no text"},
      {"print(json.dumps({'text': 'a'})); continue", "without a \"reward\""},
      {"print(json.dumps({'text': 'a', 'reward': float('nan')})); continue",
       "without a \"reward\" that is a finite number"},
      {"print(json.dumps({'text': 'a', 'reward': 'much'})); continue",
       "the \"reward\": \"much\", which is no finite number"},
      {"print(json.dumps({'reward': 0, 'terminated': 'yes'})); continue",
       "\"terminated\": \"yes\", which is neither true nor false"},
      {"print(json.dumps({'reward': 0, 'done': True})); continue",
       "answers with \"done\", which is not known; did you mean 'terminated'? Known are text, "},
      {"print(json.dumps({'reward': 0, 'observation': 'a'})); continue", "did you mean 'text'?"},
      {"print(json.dumps({'reward': 0, 'info': {'a': 1}})); continue", "did you mean 'metrics'?"},
      {"print(json.dumps({'reward': 0, 'truncatd': True})); continue", "did you mean 'truncated'?"},
      {"print(json.dumps({'reward': 0, 'qqq': None})); continue",
       "answers with \"qqq\", which is not known. Known are text, "},
      {"print(json.dumps({'reward': 0, 'terminated': True, 'truncated': True})); continue",
       "terminated and truncated at once"},
      {"print(json.dumps({'reward': 0, 'messages': ['hi']})); continue",
       "\"messages\": [\"hi\"], which is no list of objects"},
      {"print(json.dumps({'reward': 0, 'metrics': {'a b': 1}})); continue", "the metric \"a b\""},
      {"print(json.dumps({'error': 'the world has ended', 'final': True})); continue",
       "says in step(): the world has ended"},
      {"print(json.dumps({'unsupported': True})); continue", "does not know step()"},
      {"os.write(1, b'\\xff\\xfe\\n'); time.sleep(1000)", "is no JSON object"},
      {"os.close(1); time.sleep(1000)", "closed its stdout and goes on"},
  };
  for (const auto& [step, reason] : faults)
    EXPECT_THAT(fault_of(*counter(step)), HasSubstr(reason)) << step;
}

TEST_F(CommandEnvironmentTest, WhatItSaysIsFinalIsAndNothingElse) {
  for (const auto& [final, is_final] : {std::pair{"True", true}, {"False", false}}) {
    const auto environment =
        counter(fmt::format("print(json.dumps({{'error': 'no', 'final': {}}})); continue", final))
            ->open();
    ASSERT_TRUE(environment->reset({}));
    const auto result = environment->step("x");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.failure().is_final, is_final);
    EXPECT_TRUE(environment->reset({})) << "its process goes on";
  }
}

// It ignores SIGTERM, and so does what it has started.
TEST_F(CommandEnvironmentTest, WhoIsLateIsKilledWithAllThatItHasStarted) {
  const auto source = counter(
      "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
      "child = subprocess.Popen(['python3', '-c', 'import signal, time; "
      "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)']);"
      "open(pids, 'a').write(str(child.pid) + '\\n'); time.sleep(1000)",
      {.call = 3s});
  EXPECT_THAT(fault_of(*source), HasSubstr("has not answered within 3 s"));
  const std::vector<pid_t> started = pids();
  ASSERT_EQ(started.size(), 3u);
  for (const pid_t pid : started) EXPECT_TRUE(will_be([&] { return has_gone(pid); })) << pid;
}

TEST_F(CommandEnvironmentTest, AProcessThatIsKilledInTheMiddleFailsItsEpisodeAlone) {
  const auto source = counter();
  const auto environment = source->open();
  ASSERT_TRUE(environment->reset({.seed = 1}));
  const pid_t mine = pids().back();
  const auto other = source->open();
  ASSERT_TRUE(other->reset({.seed = 2}));
  ::kill(mine, SIGKILL);
  ASSERT_TRUE(will_be([&] { return has_gone(mine); }));
  const auto result = environment->step("x");
  ASSERT_FALSE(result);
  EXPECT_THAT(result.failure().message, HasSubstr("was ended by signal 9 (Killed)"));
  EXPECT_TRUE(other->step("x"));
  EXPECT_EQ(environment->reset({.seed = 1}).value().text, "1 begins\n");
  EXPECT_TRUE(environment->step("x"));
}

TEST_F(CommandEnvironmentTest, OneThatEndsBehindItsEpisodeIsReplacedAndNobodyHearsOfIt) {
  const std::string ends =
      replaced(replaced(kCounter, "STEP", "pass"), "if kind == \"sample_action\"",
               "if kind == \"close\": print(\"{}\", flush=True); sys.exit(0)\n"
               "    if kind == \"sample_action\"");
  const auto source = UsedProgram::source(program(ends), {});
  for (int i = 0; i < 8; ++i) {
    const auto environment = source->open();
    const auto first = environment->reset({.seed = 5});
    ASSERT_TRUE(first) << first.failure().message;
    EXPECT_TRUE(environment->step("x"));
  }
  EXPECT_EQ(pids().size(), 9u) << "each episode has one, and so has info";
}

TEST_F(CommandEnvironmentTest, NothingIsLeftWhenItsSourceHasGone) {
  {
    const auto source = counter();
    const auto environment = source->open();
    ASSERT_TRUE(environment->reset({}));
  }
  for (const pid_t pid : pids()) EXPECT_TRUE(has_gone(pid)) << pid;
}

// Killed as by the kernel: nobody has time to end anything.
TEST_F(CommandEnvironmentTest, NothingIsLeftWhenOurProcessIsKilled) {
  const auto source = counter();
  const pid_t worker = ::fork();
  if (worker == 0) {
    const auto environment = source->open();
    (void)environment->reset({});
    ::pause();
    ::_exit(0);
  }
  ASSERT_TRUE(will_be([&] { return pids().size() == 2; }));
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  for (const pid_t pid : pids()) EXPECT_TRUE(will_be([&] { return has_gone(pid); })) << pid;
}

TEST_F(CommandEnvironmentTest, ARowAndTheSettingsComeAsJson) {
  const auto source = UsedProgram::source(program(R"(
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if call["call"] == "info": settings = call["settings"]
    answer = {"info": {"name": "rows", "needs_dataset": True},
              "reset": {"messages": [{"role": "user", "content": json.dumps([settings, call.get("row")])}],
                        "tools": [{"type": "function", "function": {"name": "z", "a": 1}}],
                        "state": "begun"},
              "step": {"truncated": True, "reward": -1.5, "reason": "over"}}
    print(json.dumps(answer.get(call["call"], {"unsupported": True})), flush=True)
)"),
                                          {{"size", "6"}, {"hard", "true"}, {"name", "x"}});
  EXPECT_TRUE(source->info().needs_dataset);
  const auto environment = source->open();
  const auto first = environment->reset({.seed = 1, .data = R"({"prompt": "é", "n": [1]})"});
  ASSERT_TRUE(first) << first.failure().message;
  EXPECT_THAT(
      first.value().messages,
      HasSubstr(
          R"([{\"size\": 6, \"hard\": true, \"name\": \"x\"}, {\"prompt\": \"\\u00e9\", \"n\": [1]}])"));
  EXPECT_EQ(first.value().tools, R"([{"type":"function","function":{"name":"z","a":1}}])");
  EXPECT_EQ(first.value().state, "begun");
  const auto end = environment->step("x");
  ASSERT_TRUE(end);
  EXPECT_TRUE(end.value().truncated);
  EXPECT_EQ(end.value().reward, -1.5);
  EXPECT_EQ(end.value().reason, "over");
}

TEST_F(CommandEnvironmentTest, AProgramThatRefusesItsSettingsIsAMistakeAtTheStart) {
  const auto refused = [&](const std::string& answer) {
    try {
      (void)program("print('" + answer + "', flush=True)\nwhile True: input()\n")->info({});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused(R"({"error": "size is 4"})"),
              HasSubstr("'python3 env.py' says in info(): size is 4"));
  // A NUL byte ends the text of an exception, and the terminal would obey the rest.
  EXPECT_THAT(refused(R"({"error": "size\\u0000\\u001b[2J is 4"})"),
              HasSubstr("info(): size\\x00\\x1b[2J is 4"));
  EXPECT_THAT(refused(R"({"name": "a b"})"), HasSubstr("answers info with the name 'a b'"));
  EXPECT_THAT(refused(R"({"name": "a", "max_turns": 0})"), HasSubstr("\"max_turns\": 0"));
  EXPECT_THAT(refused(R"({"name": "a", "stop_strings": "x"})"), HasSubstr("no list of texts"));
  EXPECT_THAT(refused(R"({"name": "a", "max_steps": 9})"), HasSubstr("did you mean 'max_turns'?"));
  EXPECT_THAT(refused("hello"), HasSubstr("is no JSON object: 'hello'"));
}

// As one that loads a model does. The process that is asked for info does not.
const char* const kSlowStart = R"(
import os, time
open("FOLDER/starts", "a").write("x")
while os.path.exists("FOLDER/pids") and not os.path.exists("FOLDER/go"): time.sleep(0.01)
)";

TEST_F(CommandEnvironmentTest, TheDeadlineOfACallCountsFromTheStart) {
  const auto source =
      UsedProgram::source(program("import os, time\nif os.path.exists('FOLDER/pids'): "
                                  "time.sleep(13)\n" +
                                      replaced(kCounter, "STEP", "pass"),
                                  {.call = 3s}),
                          {});
  const auto environment = source->open();
  testing::internal::CaptureStderr();
  const auto first = environment->reset({.seed = 7});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(first) << first.failure().message;
  EXPECT_TRUE(environment->step("x"));
  EXPECT_THAT(log, HasSubstr("python3 env.py: 0 of 1 processes have started\n"));
}

TEST_F(CommandEnvironmentTest, AStartHasADeadlineOfItsOwn) {
  const std::string late =
      "'python3 env.py' has not answered its first line within 0.5 s of its start "
      "(rollout.start_timeout_s; a program that loads a model may need more), in ";
  try {
    (void)program("input()\nwhile True: input()\n", {.call = kPlentyOfTime, .start = 500ms})
        ->info({});
    ADD_FAILURE() << "it has started";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(late + "info()"));
  }
  // Of a reset too, for which another process starts.
  const auto used = program(kSlowStart + replaced(kCounter, "STEP", "pass"));
  const auto facts = [&] {
    (void)used->info({});
    return used->facts();
  }();
  const auto hasty = std::make_shared<UsedProgram>(
      used->start(), CommandLimits{.call = kPlentyOfTime, .start = 500ms});
  hasty->know(facts);
  const auto first = UsedProgram::source(hasty, {})->open()->reset({});
  ASSERT_FALSE(first);
  EXPECT_THAT(first.failure().message, HasSubstr(late + "reset()"));
}

// Each counts those that start beside it. A start that waits for another one is not late.
TEST_F(CommandEnvironmentTest, StartsWaitForOneAnother) {
  constexpr int kEpisodes = 10;
  const std::string counts = R"(
import os, time
os.makedirs("FOLDER/starting", exist_ok=True)
mine = "FOLDER/starting/" + str(os.getpid())
open(mine, "w")
time.sleep(0.3)
with open("FOLDER/counts", "a") as file: print(len(os.listdir("FOLDER/starting")), file=file)
time.sleep(0.3)
os.remove(mine)
)";
  const auto source = UsedProgram::source(program(counts + replaced(kCounter, "STEP", "pass"),
                                                  {.call = kPlentyOfTime, .starts_at_once = 2}),
                                          {});
  std::vector<std::unique_ptr<RemoteEnvironment>> playing;
  std::vector<std::promise<Result<StepResult>>> answers(kEpisodes);
  for (int i = 0; i < kEpisodes; ++i) {
    playing.push_back(source->open_remote());
    playing.back()->begin({.task = {.seed = 1}}, [&, i](Result<StepResult> result) {
      answers[static_cast<size_t>(i)].set_value(std::move(result));
    });
  }
  // One that is given up before its turn starts nothing.
  playing[kEpisodes - 1].reset();
  for (int i = 0; i < kEpisodes; ++i) {
    const auto result = answers[static_cast<size_t>(i)].get_future().get();
    EXPECT_EQ(result.ok(), i < kEpisodes - 1);
  }
  std::ifstream file(folder_ / "counts");
  int num_starts = 0;
  for (int together; file >> together; ++num_starts) EXPECT_LE(together, 2);
  EXPECT_EQ(num_starts, kEpisodes) << "one of them was asked for info";
}

TEST_F(CommandEnvironmentTest, AStartThatNobodyWaitsForAnyMoreServesTheNextEpisode) {
  const auto source =
      UsedProgram::source(program(kSlowStart + replaced(kCounter, "STEP", "pass")), {});
  auto given_up = source->open_remote();
  std::promise<Result<StepResult>> unwanted, wanted;
  given_up->begin({.task = {.seed = 1}},
                  [&](Result<StepResult> result) { unwanted.set_value(std::move(result)); });
  ASSERT_TRUE(will_be([&] { return fs::file_size(folder_ / "starts") == 2; }));
  given_up.reset();
  EXPECT_THAT(unwanted.get_future().get().failure().message,
              HasSubstr("was ended, as nobody waits for it any more, in reset()"));
  const auto next = source->open_remote();
  next->begin({.task = {.seed = 2}},
              [&](Result<StepResult> result) { wanted.set_value(std::move(result)); });
  folder_.write("go", "");
  const auto result = wanted.get_future().get();
  ASSERT_TRUE(result) << result.failure().message;
  EXPECT_EQ(result.value().observation.text, "2 begins\n");
  EXPECT_EQ(fs::file_size(folder_ / "starts"), 2u);
}

TEST_F(CommandEnvironmentTest, AFileThatHasChangedStartsNoProcess) {
  const auto source = counter();
  folder_.write("env.py", "print('another')");
  const auto first = source->open()->reset({});
  ASSERT_FALSE(first);
  EXPECT_THAT(first.failure().message, HasSubstr("env.py has changed since the run began"));
}

TEST_F(CommandEnvironmentTest, AProgramHasItsVariablesAndItsFolder) {
  CommandStart start = program(R"(
import json, os, sys
for line in sys.stdin: print(json.dumps({"name": os.environ["WHO"] + os.path.basename(os.getcwd())}), flush=True)
)")
                           ->start();
  start.variables = {"WHO=me-", "PATH=/usr/bin:/bin"};
  fs::create_directory(folder_ / "inside");
  start.folder = folder_ / "inside";
  EXPECT_EQ(UsedProgram(start, {.call = kPlentyOfTime}).info({}).name, "me-inside");
}

}  // namespace
}  // namespace tailrace::sandbox
