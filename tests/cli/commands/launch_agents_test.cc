// Whole runs whose episodes programs play by themselves, over HTTP (rollout/agent).
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "rollout/agent/marked_processes.h"
#include "tests/cli/commands/call_number.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

using testing::HasSubstr;

constexpr int kFewSteps = 8;

constexpr std::string_view kAgentConfig = R"(
run: {name: agents, seed: 3, steps: 8}
model:
  create: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, max_positions: 128}
env:
  agent:
    command: [python3, agent.py]
    max_calls: 4
    max_tokens: 1
    at_once: 4
    vocabulary: [one, two, three, four, ">"]
rollout:
  prompts_per_step: 4
  group_size: 4
  max_context_tokens: 64
  workers: 2
optim: {lr: 0.02}
train: {microbatch_tokens: 1024, threads: 1}
eval: {prompts: 8, interval_steps: 8}
checkpoint: {interval_steps: 3}
)";

// Says a word after another, and wants to hear each back.
constexpr const char* kAgent = R"(
import json, os, random, subprocess, sys, time, urllib.request

def chat(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"]

for line in sys.stdin:
    rng = random.Random(json.loads(line)["seed"])
    messages, right = [], 0
    for turn in range(3):
        word = rng.choice(["one", "two", "three", "four"])
        messages.append({"role": "user", "content": word + " >"})
        said = chat(messages)
        messages.append({"role": "assistant", "content": said})
        right += said.strip() == word
        FAULT
    print(json.dumps({"reward": right / 3, "metrics": {"heard": right}}), flush=True)
)";

// In one of fifty turns something goes wrong, each time something else.
constexpr const char* kSometimes = R"(asked = call_number()
        if asked % 50 == 49:
            what = asked // 50 % 6
            if what == 0: os.abort()
            if what == 1: time.sleep(1000)
            if what == 2: print("nan"); sys.exit(0)
            if what == 3: sys.exit(0)
            if what == 4: subprocess.Popen(["setsid", "sleep", "1000"]); print("1", flush=True); sys.exit(0)
            if what == 5: os.close(0); os.close(1); os.close(2); time.sleep(1000))";

class LaunchAgents : public LaunchTest {
 protected:
  LaunchAgents() { std::ofstream(folder_ / "tiny.yaml") << kAgentConfig; }

  void write_agent(const std::string& fault = "pass", const std::string& text = kAgent) const {
    std::string whole = text;
    if (const size_t at = whole.find("FAULT"); at != whole.npos) whole.replace(at, 5, fault);
    std::ofstream(folder_ / "agent.py") << call_number_in_python(folder_ / "calls") << whole;
  }
  std::string play(const std::string& run, const std::vector<std::string>& more) {
    start_run(run, more);
    expect_done();
    expect_each_step_once(run, kFewSteps);
    expect_nothing_is_left(run);
    return final_digest(run, kFewSteps);
  }
  void expect_nothing_is_left(const std::string& run) const {
    const fs::path agents = paths(run).agents();
    EXPECT_TRUE(marked_processes(mark_of(agents)).empty());
    std::error_code ignored;
    for (const auto& worker : fs::directory_iterator(agents, ignored))
      EXPECT_TRUE(fs::is_empty(worker)) << worker.path();
  }
};

TEST_F(LaunchAgents, WhatTheyDrawIsDecidedAndWhatGoesWrongCostsTimeAlone) {
  write_agent();
  const std::string one_each = play("one", {});
  EXPECT_GT(sum_of_rows("policy/updates", "one"), 0) << "else all weights are the same";
  EXPECT_GT(sum_of_rows("env/heard", "one"), 0);
  EXPECT_EQ(sum_of_rows("rollout/infra_failed_frac", "one"), 0);
  // A process that plays many episodes draws the same, and so does one that fails now and then.
  EXPECT_EQ(play("many", {"env.agent.episodes=1000", "env.agent.at_once=2"}), one_each);
  write_agent(kSometimes);
  EXPECT_EQ(play("bad", {"env.agent.run_seconds=3", "scheduler.retries_env_failed=20"}), one_each);
  EXPECT_GT(sum_of_rows("rollout/infra_failed_frac", "bad"), 0);
  EXPECT_EQ(sum_of_rows("rollout/failed_prompts", "bad"), 0);
  EXPECT_THAT(
      read_file(paths("bad").log("scheduler", 0)).value(),
      testing::AllOf(HasSubstr("was ended by signal 6 (Aborted)"), HasSubstr("did not end within"),
                     HasSubstr("is no reward, which is a number"), HasSubstr("it gives no reward"),
                     HasSubstr("it left 1 process behind")));
}

TEST_F(LaunchAgents, AWorkerThatIsKilledCostsNothingElse) {
  write_agent();
  const std::vector<std::string> many = {"env.agent.episodes=1000", "env.agent.at_once=2"};
  const std::string undisturbed = play("other", many);
  start_run("run", many);
  const pid_t trainer = stop_in_the_middle();
  ASSERT_GT(trainer, 0);
  for (const int index : {0, 1})
    for (const pid_t pid : workers("rollout", index)) ::kill(pid, SIGKILL);
  ::kill(trainer, SIGCONT);
  expect_done();
  expect_each_step_once("run", kFewSteps);
  expect_nothing_is_left("run");
  EXPECT_EQ(final_digest("run", kFewSteps), undisturbed);
}

TEST_F(LaunchAgents, EveryModePlaysThem) {
  write_agent();
  for (const char* mode : {"async", "tail_batching", "partial"}) {
    start_run(mode, {fmt::format("scheduler.mode={}", mode), "env.agent.episodes=1000",
                     "env.agent.at_once=2"});
    expect_done();
    expect_each_step_once(mode, kFewSteps);
    expect_nothing_is_left(mode);
  }
}

TEST_F(LaunchAgents, AnotherScoresThem) {
  write_agent();
  std::ofstream(folder_ / "reward.py") << R"(
import json, sys
for line in sys.stdin:
    episode = json.loads(line)
    assert episode["turns"] == 3 and len(episode["messages"]) == 6, episode
    assert episode["response"] == episode["messages"][-1]["content"], episode
    print(json.dumps({"id": episode["id"], "reward": episode["environment_reward"]}), flush=True)
)";
  const std::string own = play("own", {"env.agent.episodes=1000"});
  EXPECT_EQ(
      play("scored", {"env.agent.episodes=1000", fmt::format("reward.command=[python3, {}]",
                                                             (folder_ / "reward.py").string())}),
      own);
}

// An environment in another language (env.command): the policy says a word back, for two turns.
constexpr const char* kEnvironment = R"(
import json, random, sys
WORDS = ["one", "two", "three", "four"]
for line in sys.stdin:
    call = json.loads(line)
    if call["call"] == "info":
        said = {"name": "echo", "max_turns": 2, "max_action_tokens": 1, "vocabulary": WORDS + [">"]}
    elif call["call"] == "reset":
        rng, turn = random.Random(call["seed"]), 0
        word = rng.choice(WORDS)
        said = {"text": word + " >"}
    elif call["call"] == "step":
        turn, right = turn + 1, call["action"].strip() == word
        FAULT
        word = rng.choice(WORDS)
        said = {"text": word + " >", "reward": right / 2, "terminated": turn == 2,
                "metrics": {"heard": int(right)}}
    else:
        said = {"unsupported": True} if call["call"] != "close" else {}
    print(json.dumps(said), flush=True)
)";

TEST_F(LaunchAgents, AnEnvironmentInAnotherLanguagePlaysAndWhatGoesWrongCostsTimeAlone) {
  std::string config(kAgentConfig);
  const size_t begin = config.find("  agent:"), end = config.find("rollout:");
  config.replace(begin, end - begin, "  command: [python3, env.py]\n");
  std::ofstream(folder_ / "tiny.yaml") << config;
  const auto write = [&](const std::string& fault) {
    std::string text = kEnvironment;
    text.replace(text.find("FAULT"), 5, fault);
    std::ofstream(folder_ / "env.py") << call_number_in_python(folder_ / "calls") << text;
  };
  write("pass");
  const std::string own = play("own", {});
  EXPECT_GT(sum_of_rows("policy/updates", "own"), 0);
  EXPECT_GT(sum_of_rows("env/heard", "own"), 0);
  write(
      "asked = call_number(); (asked % 50 == 24 and sys.exit(3)); "
      "(asked % 50 == 49 and print('no answer', flush=True))");
  EXPECT_EQ(play("bad", {"scheduler.retries_env_failed=20"}), own);
  EXPECT_GT(sum_of_rows("rollout/infra_failed_frac", "bad"), 0);
  EXPECT_EQ(sum_of_rows("rollout/failed_prompts", "bad"), 0);
  EXPECT_THAT(read_file(paths("bad").log("scheduler", 0)).value(),
              testing::AllOf(HasSubstr("has ended with status 3"), HasSubstr("'no answer'")));
  EXPECT_TRUE(processes_with({(folder_ / "env.py").string()}).empty());
}

// The run's folder is given by a name that holds where the launch is; an agent works elsewhere.
TEST_F(LaunchAgents, WithARelativeRunDirectoryTheRewardFileIsFound) {
  write_agent("pass", R"(
import json, os, urllib.request
assert json.load(open(os.environ["TAILRACE_TASK"]))["row"] is None
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": "one >"}]}).encode(),
    {"Content-Type": "application/json"})
json.load(urllib.request.urlopen(request, timeout=60))
open(os.environ["TAILRACE_REWARD_FILE"], "w").write("0.75")
)");
  for (const std::string more : {"", " --in-process"}) {
    const std::string run = more.empty() ? "apart" : "together";
    start({"/bin/sh", "-c",
           fmt::format("cd '{}' && exec {} launch tiny.yaml --run-dir {} run.steps=1 "
                       "eval.prompts=0{}",
                       folder_.string(), TAILRACE_BINARY, run, more)});
    expect_done();
    EXPECT_EQ(sum_of_rows("reward/mean", run), 0.75);
    EXPECT_EQ(sum_of_rows("rollout/infra_failed_frac", run), 0);
    expect_nothing_is_left(run);
  }
}

// The gateway refuses what an agent asks, whose client shows a number alone.
TEST_F(LaunchAgents, WhatTheGatewayRefusesIsInTheMessageAndInTheLog) {
  write_agent("pass", R"(
import json, os, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": "one >"}],
                "response_format": {"type": "json_object"}}).encode(),
    {"Content-Type": "application/json"})
json.load(urllib.request.urlopen(request, timeout=60))
)");
  start_run("run", {"rollout.workers=1"});
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(), testing::AllOf(HasSubstr("attempts ended as env_failed; the last one: the "
                                                 "gateway refused a call of it: 400 "
                                                 "response_format"),
                                       HasSubstr("HTTP Error 400")));
  const std::string log = read_file(paths().log("rollout", 0)).value();
  EXPECT_THAT(log, testing::AllOf(HasSubstr("the gateway refused a call: 400 response_format"),
                                  HasSubstr("(the like 10 times so far)")));
  // An evaluation, whose agents are refused the same, has no log.
  const auto evaluated = run_binary("eval --run " + paths().root.string() + " --episodes 10");
  EXPECT_EQ(evaluated.exit_code, 2) << evaluated.err;
  EXPECT_THAT(evaluated.err,
              testing::AllOf(HasSubstr("note: the gateway refused a call: 400 response_format"),
                             HasSubstr("(the like 10 times so far)")));
}

// A body that is too long is refused by the server before the gateway sees it.
TEST_F(LaunchAgents, ABodyThatIsTooLongIsInTheMessageAndInTheLog) {
  write_agent("pass", R"(
import json, os, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": "one >" * 300000}]}).encode(),
    {"Content-Type": "application/json"})
json.load(urllib.request.urlopen(request, timeout=60))
)");
  start_run("run", {"rollout.workers=1", "env.agent.max_request_mb=1"});
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(), HasSubstr("gateway refused a call of it: 413 the body of the request has "
                                  "more than 1048576 bytes (env.agent.max_request_mb)"));
  const std::string log = read_file(paths().log("rollout", 0)).value();
  EXPECT_THAT(log, testing::AllOf(HasSubstr("the gateway refused a call: 413 the body"),
                                  HasSubstr("(the like 10 times so far)")));
}

// What a program has started ends with its worker too, however it hides and the worker ends.
TEST_F(LaunchAgents, WhatHidesEndsWithAWorkerThatIsKilled) {
  const std::string name = fmt::format("9{}", ::getpid());
  write_agent(
      fmt::format("call_number() == 40 and (os.system('setsid env -i sleep {} &'), "
                  "time.sleep(1000))",
                  name));
  start_run("run", {"env.agent.episodes=1000", "env.agent.at_once=2"});
  ASSERT_TRUE(wait_until([&] { return !processes_with({"sleep " + name}).empty(); })) << output();
  for (const int index : {0, 1})
    for (const pid_t pid : workers("rollout", index)) ::kill(pid, SIGKILL);
  EXPECT_TRUE(wait_until([&] { return processes_with({"sleep " + name}).empty(); }));
  expect_done();
  expect_each_step_once("run", kFewSteps);
  expect_nothing_is_left("run");
}

// An agent reports its metrics behind an answer alone, so that the trainer is the first to know.
TEST_F(LaunchAgents, AFilterMetricThatNoAgentReportsIsToldWithThoseThatTheyHave) {
  write_agent();
  start_run("run", {"rollout.workers=1", "algo.filter_metric=herd"});
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(),
              testing::AllOf(HasSubstr("algo.filter_metric is herd, and none of the 16 samples"),
                             HasSubstr(", heard, "), HasSubstr("Start a new run directory")));
}

TEST_F(LaunchAgents, WhatIsWrongIsOneMessage) {
  write_agent();
  const auto refused = [&](const std::vector<std::string>& more) {
    start_run("run", more);
    EXPECT_EQ(finish().code, 2) << output();
    EXPECT_FALSE(fs::exists(folder_ / "run/config.yaml"));
    return output();
  };
  EXPECT_THAT(refused({"env.agent.command=[no-such-agent]"}),
              HasSubstr("env.agent.command is 'no-such-agent': there is no program no-such-agent"));
  EXPECT_THAT(refused({"env.isolation=none"}), HasSubstr("env.isolation is none"));
  EXPECT_THAT(refused({"sft.demonstrations=5"}), HasSubstr("has no demonstrator"));
  EXPECT_THAT(refused({"env.agent.command=[]"}), HasSubstr("env.name is missing"));
  EXPECT_THAT(refused({"env.command=[python3, env.py]"}), HasSubstr("are both given"));
  // One that never works is told before the run, or ends it, with its own words.
  write_agent("pass", "raise RuntimeError('no such tool')\n");
  EXPECT_THAT(refused({}), testing::AllOf(HasSubstr("before the run, fails before its first call"),
                                          HasSubstr("RuntimeError: no such tool")));
  write_agent("raise RuntimeError('no such word')");
  start_run("run", {});
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(), testing::AllOf(HasSubstr("all of the first 1"),
                                       HasSubstr("attempts ended as env_failed"),
                                       HasSubstr("RuntimeError: no such word")));
}

}  // namespace
}  // namespace tailrace
