// Whole runs that a program in another language, or a judge, scores.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/http/server.h"
#include "tests/cli/commands/call_number.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

using testing::HasSubstr;

// The reward of the environment, handed through.
constexpr const char* kThrough = R"(
import json, os, sys, time
for line in sys.stdin:
    episode = json.loads(line)
    assert episode["turns"] == sum(m["role"] == "assistant" for m in episode["messages"])
    assert episode["row"] is None and episode["prompt"] == episode["messages"][0]["content"]
    FAULT
    print(json.dumps({"id": episode["id"], "reward": episode["environment_reward"],
                      "metrics": {"said": len(episode["response"])}}))
)";

// In one of forty episodes something goes wrong, each time something else.
constexpr const char* kSometimes = R"(asked = call_number()
    if asked % 40 == 39:
        what = asked // 40 % 6
        if what == 0: os.abort()
        if what == 1: time.sleep(1000)
        if what == 2: print("not an answer")
        if what == 3: sys.exit(0)
        if what == 4: print(json.dumps({"id": episode["id"], "reward": float("nan")})); continue
        if what == 5: print(json.dumps({"id": episode["id"], "error": "no idea"})); continue)";

class LaunchRewards : public LaunchTest {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string through(const std::string& name, const std::string& fault = "") const {
    std::string text = kThrough;
    text.replace(text.find("FAULT"), 5, fault);
    text.insert(0, call_number_in_python(folder_ / (name + ".calls")));
    return fmt::format("reward.command=[python3, {}]", write(name, text).string());
  }
  // A metric of each step.
  std::vector<double> series(const std::string& metric, const std::string& run) const {
    const auto rows = read_metrics(paths(run).metrics());
    EXPECT_TRUE(rows);
    std::vector<double> values;
    for (const MetricsRow& row : rows.value())
      if (const double* value = row.find(metric)) values.push_back(*value);
    return values;
  }
  // Begins a run; its root digest once it has ended.
  std::string play(const std::string& run, const std::vector<std::string>& more) {
    start_run(run, more);
    expect_done();
    return final_digest(run, kSteps);
  }
};

// What a program says is the reward: handed through, it gives the weights of the run without it.
TEST_F(LaunchRewards, ARewardThatIsHandedThroughChangesNoBit) {
  const std::string own = play("own", {});
  EXPECT_EQ(play("through", {through("reward.py")}), own);
  expect_each_step_once("through");
  EXPECT_GT(sum_of_rows("policy/updates", "own"), 0) << "else all weights are the same";
  EXPECT_GT(sum_of_rows("env/said", "through"), 0);
  EXPECT_EQ(sum_of_rows("rollout/infra_failed_frac", "through"), 0);
  // So does a sum of which it is a half, twice.
  const std::string command = through("reward.py").substr(15);
  EXPECT_EQ(play("parts", {fmt::format("reward.parts=[{{name: a, weight: 0.5, command: {0}}}, "
                                       "{{name: b, weight: 0.5, command: {0}}}]",
                                       command),
                           "reward.batch=1"}),
            own);
  EXPECT_EQ(sum_of_rows("env/reward_a", "parts"), sum_of_rows("reward/mean", "own"));
}

// All answers are wrong, and a small part of the reward differs: by the reward each group has
// something to teach, and by the part that says what is right none has.
TEST_F(LaunchRewards, APartOfTheRewardJudgesGroups) {
  const auto part = [&](const std::string& name, const std::string& reward) {
    return fmt::format("command: [python3, {}]",
                       write(name, fmt::format("import json, sys, zlib\n"
                                               "for line in sys.stdin:\n"
                                               "    e = json.loads(line)\n"
                                               "    print(json.dumps({{'id': e['id'], 'reward': {},"
                                               " 'metrics': {{'chars': 1}}}}), flush=True)\n",
                                               reward))
                           .string());
  };
  const std::string parts = fmt::format(
      "reward.parts=[{{name: correct, {}}}, {{name: short, weight: 0.2, {}}}]",
      part("zero.py", "0.0"), part("short.py", "zlib.crc32(e['response'].encode()) / 2**32"));
  const auto silent = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.end(), {parts, "run.steps=2"});
    start_run(run, more);
    expect_done();
    return series("rollout/zero_signal_frac", run);
  };
  for (const double share : silent("reward", {})) EXPECT_LT(share, 1);
  EXPECT_EQ(silent("part", {"algo.filter_metric=correct"}), (std::vector<double>{1, 1}));
  // Replaced as far as the step may, and then taken as they are.
  EXPECT_EQ(
      silent("replaced", {"algo.filter_metric=env/reward_correct",
                          "scheduler.replace_zero_signal=true", "scheduler.max_gen_batches=2"}),
      (std::vector<double>{1, 1}));
  EXPECT_GT(sum_of_rows("rollout/filtered_prompts", "replaced"), 0);
  start_run("other", {parts, "algo.filter_metric=corect"});
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(), testing::AllOf(HasSubstr("algo.filter_metric is corect"),
                                       HasSubstr("reward_correct"), HasSubstr("short_chars")));
}

TEST_F(LaunchRewards, WhatGoesWrongInAProgramCostsTimeAndNoBit) {
  const std::vector<std::string> more = {"scheduler.verify_seconds=4",
                                         "scheduler.retries_verifier_failed=20", "reward.batch=4",
                                         "reward.start_timeout_s=2"};
  const auto with = [&](const std::string& command) {
    std::vector<std::string> all = more;
    all.push_back(command);
    return all;
  };
  const std::string good = play("good", {});
  EXPECT_EQ(play("bad", with(through("faulty.py", kSometimes))), good);
  expect_each_step_once("bad");
  EXPECT_GT(sum_of_rows("rollout/infra_failed_frac", "bad"), 0);
  EXPECT_EQ(sum_of_rows("rollout/failed_prompts", "bad"), 0);
  EXPECT_THAT(read_file(paths("bad").log("reward", 0)).value(),
              testing::AllOf(HasSubstr("was ended by signal 6 (Aborted)"),
                             // By how many had come when the program was asked.
                             testing::AnyOf(HasSubstr("has not answered an episode within"),
                                            HasSubstr("has not answered a batch within")),
                             HasSubstr("is no JSON object: 'not an answer'"),
                             HasSubstr("has ended with status 0 before its answer")));
  EXPECT_THAT(read_file(paths("bad").log("scheduler", 0)).value(),
              testing::AllOf(HasSubstr("its \"reward\" is null, NaN or infinite"),
                             HasSubstr("the program says: no idea")));
  EXPECT_TRUE(processes_with({(folder_ / "faulty.py").string()}).empty());
}

TEST_F(LaunchRewards, ARunKeepsItsProgram) {
  play("run", {through("reward.py"), "run.steps=16"});
  std::ofstream(folder_ / "reward.py", std::ios::app) << "# another one\n";
  start(command({"--run-dir", (folder_ / "run").string(), "run.steps=20"}));
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_THAT(output(), HasSubstr("reward.py: it has changed since the run began"));
}

class RewardMessages : public LaunchRewards {
 protected:
  // What a launch says that ends before it has begun.
  std::string refused(const std::vector<std::string>& more) {
    start_run("run", more);
    EXPECT_EQ(finish().code, 2) << output();
    EXPECT_FALSE(fs::exists(folder_ / "run/config.yaml"));
    return output();
  }
};

TEST_F(RewardMessages, AProgramThatDoesNotWorkIsOneMessageAtTheLaunch) {
  EXPECT_THAT(refused({"reward.command=[no-such-python, x.py]"}),
              HasSubstr("reward.command is 'no-such-python x.py': there is no program "
                        "no-such-python on this machine"));
  const std::string file = write("syntax.py", "for line in\n").string();
  EXPECT_THAT(refused({fmt::format("reward.command=[python3, {}]", file)}),
              testing::AllOf(HasSubstr("'python3 syntax.py' has ended with status 1"),
                             HasSubstr("SyntaxError")));
  const auto answering = [&](const std::string& name, const std::string& answer) {
    return fmt::format("reward.command=[python3, {}]",
                       write(name, fmt::format("import json, sys\nfor line in sys.stdin:\n    id = "
                                               "json.loads(line)['id']\n    {}\n",
                                               answer))
                           .string());
  };
  EXPECT_THAT(refused({answering("twice.py",
                                 "for i in (1, 2): print(json.dumps({'id': id, "
                                 "'reward': i}))")}),
              HasSubstr("'python3 twice.py' answers the id 0 twice"));
  EXPECT_THAT(refused({answering("huge.py", "print(json.dumps({'id': id, 'reward': 1e308}))")}),
              HasSubstr("\"reward\" is 1e+308, which is no finite number of at most 1e+30"));
  EXPECT_THAT(refused({"reward.command=[sleep, '1000']", "scheduler.verify_seconds=2",
                       "reward.start_timeout_s=0.5"}),
              HasSubstr("'sleep 1000' has not answered an episode within 2.12 s, 0.5 s of which "
                        "are for its start (reward.start_timeout_s; "));
}

TEST_F(RewardMessages, WhatCannotBeTogetherIsRefused) {
  const std::string command = "reward.command=[cat]";
  EXPECT_THAT(refused({command, "reward.isolation=none"}),
              HasSubstr("reward.isolation is none, and a command always runs in processes"));
  EXPECT_THAT(refused({"reward.isolation=sandbox"}), HasSubstr("which is for programs"));
  EXPECT_THAT(refused({command, "reward.parts=[{name: a, verifier: number}]"}),
              HasSubstr("reward.parts are both given"));
  EXPECT_THAT(refused({"reward.parts=[{name: a}]"}),
              HasSubstr("reward.parts.a: neither command nor verifier is given"));
  EXPECT_THAT(refused({"reward.parts=[{name: a, verifier: numbr}]"}),
              HasSubstr("did you mean 'number'?"));
  EXPECT_THAT(refused({"reward.parts=[{name: a, verifier: number}, {name: a, verifier: number}]"}),
              HasSubstr("Give each a name of its own"));
  for (const char* name : {"reward", "reward_b"})
    EXPECT_THAT(refused({fmt::format("reward.parts=[{{name: {}, verifier: number}}]", name)}),
                HasSubstr("reward_ is in front of what all parts have for a metric. Try outcome."));
  EXPECT_THAT(refused({"reward.command=python3 reward.py"}),
              HasSubstr("must be a list of texts. Try [python3, reward.py]."));
  EXPECT_THAT(refused({"reward.batch=4"}), HasSubstr("no program scores"));
}

// In one file two of them contradict each other; over a file the command wins.
TEST_F(RewardMessages, ACommandTakesThePlaceOfAVerifier) {
  const std::string data = fmt::format("{}/tests/data", TAILRACE_SOURCE_DIR);
  const std::string text = fmt::format(
      "model: {{path: {0}/models/stories260K}}\nenv:\n  name: text\n  dataset: "
      "{0}/prompts/tinystories_prompts.jsonl\n  settings: {{verifier: text_rules}}\n",
      data);
  const std::string script = fmt::format("[python3, {}/examples/reward.py]", TAILRACE_SOURCE_DIR);
  write("base.yaml", text);
  write("both.yaml", text + "reward: {command: " + script + "}\n");
  // Found from the folder of the config, wherever the launch is.
  fs::copy_file(fmt::format("{}/examples/reward.py", TAILRACE_SOURCE_DIR), folder_ / "mine.py");
  write("over.yaml", "extends: base.yaml\nreward: {command: [python3, mine.py]}\n");
  const auto say = [&](const std::string& config) {
    return run_binary(fmt::format("launch {} --dry-run eval.prompts=0 --run-dir {}",
                                  (folder_ / config).string(), (folder_ / "none").string()));
  };
  const auto both = say("both.yaml");
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("both.yaml:5: env.settings.verifier has no effect: "
                                  "reward.command scores all episodes. Remove one of them."));
  const auto over = say("over.yaml");
  EXPECT_EQ(over.exit_code, 0) << over.err;
  EXPECT_THAT(over.out, HasSubstr("note: without effect, as reward.command scores all episodes: "
                                  "env.settings.verifier"));
  EXPECT_THAT(over.out, HasSubstr("reward.command is 'python3 mine.py', in processes of its own"));
}

// The example learns what it rewards, on a really trained model.
TEST_F(LaunchRewards, TheExampleInPythonLearns) {
  const auto result = run_binary(
      fmt::format("launch {0}/configs/tinystories.yaml 'reward.command=[python3, "
                  "{0}/examples/reward.py]' --run-dir {1}/run run.steps=10 eval.prompts=0",
                  TAILRACE_SOURCE_DIR, folder_.string()));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto rows = read_metrics(folder_ / "run/metrics.jsonl");
  ASSERT_TRUE(rows.ok()) << rows.failure().message;
  std::vector<double> rewards;
  for (const MetricsRow& row : rows.value())
    if (const double* reward = row.find("reward/mean")) rewards.push_back(*reward);
  ASSERT_EQ(rewards.size(), 10u);
  // 0.44 to 0.81, and 0.05 from one step to the next by chance.
  EXPECT_GT(rewards[8] + rewards[9], rewards[0] + rewards[1] + 0.3);
}

// A folder that transformers wrote scores what the policy says.
TEST_F(LaunchRewards, ARewardModelScoresAllEpisodes) {
  const fs::path model = folder_ / "judge";
  fs::copy(fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/reward-tiny", model);
  const std::string chat = "{% for message in messages %}{{ message['content'] }}{% endfor %}";
  std::ofstream(model / "chat_template.jinja") << chat;
  const std::string given = fmt::format("reward.model={}", model.string());
  start_run("run", {given});
  expect_done();
  expect_each_step_once("run");
  const std::vector<double> cut = series("env/reward_model_cut", "run");
  EXPECT_EQ(cut, std::vector<double>(cut.size(), 0.0));
  EXPECT_FALSE(cut.empty());
  // A run that goes on has the model that it began with: no other files, and no more of them.
  const auto refusal = [&] {
    start(command({"--run-dir", (folder_ / "run").string(), "run.steps=200"}));
    EXPECT_EQ(finish().code, 2) << output();
    return output();
  };
  fs::remove(model / "chat_template.jinja");
  EXPECT_THAT(refusal(), HasSubstr("chat_template.jinja: it is gone since the run began"));
  std::ofstream(model / "chat_template.jinja") << chat;
  fs::copy(model / "model.safetensors", model / "more.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("more.safetensors: it was added since the run began"));
  fs::remove(model / "more.safetensors");
  std::ofstream(model / "tokenizer_config.json", std::ios::app) << "\n";
  EXPECT_THAT(refusal(), HasSubstr("tokenizer_config.json: it has changed since the run began"));
}

TEST_F(LaunchRewards, ARewardModelStandsAlone) {
  const std::string given =
      fmt::format("reward.model={}/tests/data/models/reward-tiny", TAILRACE_SOURCE_DIR);
  const auto refusal = [&](const std::string& more) {
    start_run("run", {given, more});
    EXPECT_EQ(finish().code, 2) << output();
    return output();
  };
  EXPECT_THAT(refusal("reward.command=[python3]"),
              HasSubstr("reward.model and reward.command are both given"));
  EXPECT_THAT(refusal("reward.workers=0"), HasSubstr("reward.workers is 0. Try reward.workers=1."));
  EXPECT_THAT(refusal("reward.model_tokens=5000"), HasSubstr("the model has 1024 positions"));
  EXPECT_THAT(
      refusal(fmt::format("model.path={}/tests/data/models/reward-tiny", TAILRACE_SOURCE_DIR)),
      HasSubstr("is a reward model; it gives scores, not tokens"));
}

// A judge that gives 5 of 10 for a left turn, and is away or says no number now and then.
TEST_F(LaunchRewards, AJudgeIsAskedAndWhatItDoesNotSayIsNoScore) {
  std::atomic<int> asked = 0;
  http::Server judge({}, [&](http::Request request, http::Reply reply) {
    const int number = ++asked;
    const bool is_left = request.body.find("left") != std::string::npos;
    if (number % 9 == 5) return reply.send(503, "busy");
    const std::string said = number % 9 == 7 ? "I cannot say." : is_left ? "Score: 5" : "Score: 0";
    reply.send(200, json_text(nlohmann::json{{"choices", {{{"message", {{"content", said}}}}}}}));
  });
  const std::string url = fmt::format("http://127.0.0.1:{}/v1", judge.port());
  std::ofstream(folder_ / "tiny.yaml", std::ios::app)
      << fmt::format("reward: {{judge: {{url: \"{}\", prompt: \"Rate '{{response}}'\"}}}}\n", url);
  start_run("run", {"run.steps=3", "eval.prompts=0"});
  expect_done();
  const std::vector<double> rewards = series("reward/mean", "run");
  ASSERT_EQ(rewards.size(), 3u);
  for (const double reward : rewards) {
    EXPECT_GE(reward, 0);
    EXPECT_LE(reward, 0.5);
  }
  // A fifth of what it was asked had no score, and was asked again.
  EXPECT_GT(asked, 3 * 16 + 5);
  EXPECT_GT(*std::ranges::max_element(rewards), 0);
  // In a sum with another one; and where nobody is there, before the run.
  std::ofstream(folder_ / "tiny.yaml") << kConfig
                                       << fmt::format(R"(reward:
  judge: {{url: "{}", prompt: "Rate '{{response}}'"}}
  parts:
    - {{name: style, verifier: judge, weight: 2}}
)",
                                                      url);
  start_run("other", {"run.steps=1", "eval.prompts=0"});
  expect_done();
  EXPECT_EQ(series("env/reward_style", "other").size(), 1u);
  start_run("third", {"reward.judge.url=http://127.0.0.1:1/v1"});
  expect_refused("the judge http://127.0.0.1:1/v1");
  start_run("third", {"reward.judge.prompt=Rate it"});
  expect_refused("reward.judge.prompt shows the judge neither {response}");
  start_run("third", {"reward.judge.url=https://judge"});
  expect_refused("is https");
}

}  // namespace
}  // namespace tailrace
