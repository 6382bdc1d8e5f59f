// Agents in a sandbox, over a real gateway and a real engine: what they reach, and what is left.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/base/ids.h"
#include "rollout/agent/agent_runner.h"
#include "sandbox/launcher/launcher.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/rollout/engine/engine_harness.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using sandbox::AgentProgram;

// Asks the policy as often as it is told, with what it was given and the standard library.
constexpr const char* kAsk = R"py(
import json, os, sys, urllib.request
def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
def say(text):
    return [{"role": "user", "content": text}]
)py";

AgentProgram python(const std::string& script) {
  AgentProgram program;
  program.run = {"/usr/bin/python3", "-c", kAsk + script};
  program.run_deadline = 20s;
  program.is_isolated = true;
  return program;
}

// How many processes of this machine have `word` in their command line.
int num_processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto command = read_file(entry.path() / "cmdline", 1 << 20);
    if (command && command.value().find(word) != std::string::npos) ++count;
  }
  return count;
}

class AgentSandbox : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto can = sandbox::check_isolation(); !can) GTEST_SKIP() << can.failure().message;
    if (!fs::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3";
  }

  void start(int64_t task, AgentProgram program) {
    start(task, std::make_shared<const AgentProgram>(std::move(program)));
  }
  void start(int64_t task, std::shared_ptr<const AgentProgram> program) {
    EpisodeSpec spec{.lease = lease(task), .task = {}, .key = {}, .sampling = {}, .limits = {}};
    spec.task.seed = 17;
    spec.task.data = R"({"a": 1})";
    spec.key.value = static_cast<uint64_t>(task);
    spec.limits = {.max_context_tokens = 128,
                   .max_prompt_tokens = 128,
                   .max_response_tokens = 128,
                   .max_action_tokens = 6,
                   .max_turns = 10};
    spec.numerics_class = "cpu";
    runner_.start(std::move(spec), "agent", std::move(program));
  }
  static LeaseId lease(int64_t task) {
    LeaseId lease;
    lease.member.prompt = task;
    return lease;
  }
  // What the worker's loop does, until so many have ended.
  std::vector<FinishedEpisode> ends(size_t count) {
    std::vector<FinishedEpisode> all;
    for (const Time until = steady_now() + 40s; all.size() < count && steady_now() < until;) {
      serve();
      for (FinishedEpisode& episode : runner_.poll()) all.push_back(std::move(episode));
    }
    EXPECT_EQ(all.size(), count);
    all.resize(count);
    return all;
  }
  FinishedEpisode end_of(AgentProgram program) {
    start(1, std::move(program));
    return std::move(ends(1)[0]);
  }
  void serve() {
    gateway_.poll();
    if (engine_->idle()) {
      gateway_.wait(1ms);
    } else {
      driver_.step();
    }
  }
  uint16_t port_here() {
    const std::string url = gateway_.base_url();
    return static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  }

  TemporaryDirectory directory_;
  TestModel model_{"models/stories260K"};
  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K");
  chat::PromptFormat format_{*tokenizer_};
  TestEngine engine_{model_, {}, tokenizer_.get()};
  GeneratorDriver driver_{*engine_};
  SteadyClock clock_;
  gateway::Gateway gateway_{driver_, format_, {}, clock_};
  AgentRunner runner_{gateway_, directory_ / "agents", clock_};
};

TEST_F(AgentSandbox, ItsTokensAreCaptured) {
  const FinishedEpisode episode = end_of(python(R"py(
task = json.loads(sys.stdin.readline())
assert task == json.load(open(os.environ["TAILRACE_TASK"])) and task["row"] == {"a": 1}
assert "TAILRACE_REWARD_FILE" not in os.environ and os.getcwd() == "/tmp"
history = say("Once upon a time")
for text in (" Then", " and"):
    history += [{"role": "assistant", "content": ask(history)}] + say(text)
print(json.dumps({"reward": 0.5, "metrics": {"seed": task["seed"]}}))
)py"));
  EXPECT_EQ(episode.failure, "");
  const Trajectory& trajectory = episode.trajectory;
  EXPECT_EQ(trajectory.outcome, Outcome::kFinished);
  EXPECT_EQ(trajectory.reward, 0.5);
  EXPECT_EQ(trajectory.turns, 2);
  ASSERT_EQ(trajectory.segments.size(), 1);
  EXPECT_EQ(find_fault(trajectory), std::nullopt);
  EXPECT_EQ(trajectory.num_sampled(), 12);
  // As training will compute them.
  const Segment& segment = trajectory.segments[0];
  const std::vector<float> logprobs = teacher_forced(model_, segment.tokens, 1.0f);
  for (size_t i = 1; i < segment.tokens.size(); ++i)
    if (segment.roles[i] == TokenRole::kSampled) {
      EXPECT_EQ(segment.logprobs[i], logprobs[i - 1]) << i;
    }
}

TEST_F(AgentSandbox, ItReachesThePolicyAlone) {
  const FinishedEpisode episode = end_of(python(fmt::format(R"py(
import socket
ask(say("Once"))
for address in [("127.0.0.1", {}), ("127.0.0.1", 22), ("192.0.2.1", 80)]:
    try:
        socket.create_connection(address, timeout=5)
        sys.exit("it has reached %s" % (address,))
    except OSError:
        pass
print(1)
)py",
                                                            port_here())));
  EXPECT_EQ(episode.failure, "");
  EXPECT_EQ(episode.trajectory.reward, 1);
}

TEST_F(AgentSandbox, TheKeyOfAnotherIsOfNoUse) {
  const FinishedEpisode episode = end_of(python(R"py(
import urllib.error
ask(say("Once"))
os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:8080/s/other/v1"
os.environ["OPENAI_API_KEY"] = "other"
try:
    ask(say("Once"))
except urllib.error.HTTPError as error:
    print(json.dumps({"reward": error.code}))
)py"));
  EXPECT_EQ(episode.failure, "");
  EXPECT_EQ(episode.trajectory.reward, 401);
}

TEST_F(AgentSandbox, AtItsDeadlineNothingIsLeft) {
  const std::string word = fmt::format("left-{}", directory_.path().filename().string());
  AgentProgram program = python(fmt::format(R"py(
import signal, subprocess, time
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
subprocess.Popen(["/bin/sh", "-c", "sleep 60; : {}"], start_new_session=True)
ask(say("Once"))
time.sleep(60)
)py",
                                            word));
  program.run_deadline = 2s;
  const FinishedEpisode episode = end_of(std::move(program));
  EXPECT_EQ(episode.failure, "its run did not end within 2 s");
  EXPECT_EQ(episode.trajectory.outcome, Outcome::kEnvFailed);
  for (const Time until = steady_now() + 10s; num_processes_with(word) > 0 && steady_now() < until;)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(num_processes_with(word), 0);
  EXPECT_TRUE(fs::is_empty(directory_ / "agents"));
}

TEST_F(AgentSandbox, ManyPlayAtOnce) {
  // A later one may have the descriptor of an earlier one: the server must not mix them up.
  const auto program = std::make_shared<const AgentProgram>(python(R"py(
ask(say("Once")); ask(say("Twice"))
print(1)
)py"));
  for (int64_t round = 0; round < 3; ++round) {
    for (int64_t i = 1; i <= 6; ++i) start(10 * round + i, program);
    for (const FinishedEpisode& episode : ends(6)) {
      EXPECT_EQ(episode.failure, "");
      EXPECT_EQ(episode.trajectory.num_sampled(), 12);
    }
  }
}

TEST_F(AgentSandbox, AProcessPlaysSeveralEpisodes) {
  AgentProgram several = python(R"py(
assert "TAILRACE_TASK" not in os.environ
for number, line in enumerate(sys.stdin):
    ask(say("Once"))
    print(json.dumps({"reward": number}), flush=True)
)py");
  several.episodes = 2;
  const auto program = std::make_shared<const AgentProgram>(std::move(several));
  for (const double reward : {0, 1, 0}) {
    start(1, program);
    const FinishedEpisode episode = std::move(ends(1)[0]);
    EXPECT_EQ(episode.failure, "");
    EXPECT_EQ(episode.trajectory.reward, reward);
  }
}

TEST_F(AgentSandbox, AnAbortedOneIsGone) {
  const std::string word = fmt::format("left-{}", directory_.path().filename().string());
  start(1, python(fmt::format("import time\nask(say('Once'))\ntime.sleep(60) # {}", word)));
  for (const Time until = steady_now() + 20s;
       num_processes_with(word) == 0 && steady_now() < until;)
    serve();
  EXPECT_GT(num_processes_with(word), 0);
  EXPECT_TRUE(runner_.abort(lease(1), Lane::kTrain));
  for (const Time until = steady_now() + 20s; num_processes_with(word) > 0 && steady_now() < until;)
    serve();
  EXPECT_EQ(num_processes_with(word), 0);
  EXPECT_TRUE(runner_.poll().empty());
}

}  // namespace
}  // namespace tailrace
