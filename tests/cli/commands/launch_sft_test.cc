// Supervised training alone: a run that has a scheduler and a trainer.
#include <set>

#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

// With the end token of Llama behind each answer.
constexpr std::string_view kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

class LaunchSft : public LaunchTest {
 protected:
  LaunchSft() {
    std::ofstream(folder_ / "chat.jinja") << kTemplate;
    std::ofstream rows(folder_ / "rows.jsonl"), held_out(folder_ / "held_out.jsonl");
    for (int i = 0; i < 90; ++i) {
      const int a = i % 9, b = i / 9;
      (i % 7 == 0 ? held_out : rows)
          << fmt::format(R"({{"messages": [{{"role": "user", "content": "{} + {}"}}, )"
                         R"({{"role": "assistant", "content": "{}"}}]}})"
                         "\n",
                         a, b, a + b);
    }
    std::ofstream(folder_ / "tiny.yaml") << fmt::format(
        "run: {{name: sums, seed: 3}}\n"
        "model: {{path: {}/tests/data/models/stories260K}}\n"
        "chat: {{template: chat.jinja}}\n"
        "sft:\n"
        "  data: rows.jsonl\n"
        "  eval_data: held_out.jsonl\n"
        "  eval_updates: 8\n"
        "  epochs: 8\n"
        "  batch_tokens: 256\n"
        "  checkpoint_updates: 5\n"
        "  optim: {{lr: 1.0e-3}}\n"
        "train: {{microbatch_tokens: 256, threads: 1}}\n",
        TAILRACE_SOURCE_DIR);
  }
  // Within its training; where it is written it has another name.
  bool has_saved() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(paths().stage_checkpoints("sft"), ignored))
      if (checkpoint_step(entry.path())) return true;
    return false;
  }
  std::string weights(const std::string& run) const {
    return read_file(paths(run).checkpoints() / "step_000000" / "model.safetensors").value();
  }
};

TEST_F(LaunchSft, TrainsMeasuresAndLeavesAModel) {
  start_run();
  expect_done();
  EXPECT_NE(output().find("sums: loss "), std::string::npos) << output();
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows) << rows.failure().message;
  std::vector<double> losses;
  for (const MetricsRow& row : rows.value())
    if (const double* loss = row.find("sft/eval_loss")) losses.push_back(*loss);
  ASSERT_GE(losses.size(), 3u);
  EXPECT_LT(losses.back(), losses.front() / 2);
  // Nobody samples, and nobody scores.
  std::set<std::string> logs;
  for (const auto& log : fs::directory_iterator(paths().logs()))
    logs.insert(log.path().filename().string());
  EXPECT_EQ(logs, (std::set<std::string>{"scheduler-0.log", "trainer-0.log"}));
  const fs::path model = paths().checkpoints() / "step_000000";
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_TRUE(fs::exists(model / file)) << file;
  EXPECT_FALSE(fs::exists(paths().stage_checkpoints("sft")));
  EXPECT_NE(read_file(paths().report()).value().find("sft/eval_loss"), std::string::npos);
  const auto said = run_binary(
      "model generate --max-new-tokens 4 --chat --prompt '2 + 3' --model " + model.string());
  EXPECT_EQ(said.exit_code, 0) << said.err;
  const std::string status = run_binary("status " + paths().root.string()).out;
  EXPECT_NE(status.find("complete: all updates are done"), std::string::npos) << status;
  EXPECT_NE(status.find("newest checkpoint checkpoints/step_000000\n"), std::string::npos)
      << status;
  const auto updates = static_cast<int64_t>(*rows.value().back().find("sft/updates"));
  EXPECT_NE(status.find(fmt::format("updates   {0} of {0}, loss ", updates)), std::string::npos)
      << status;
  // Again: nothing is left to do.
  continue_run();
  expect_done();
  EXPECT_NE(output().find("The run was complete before: 8 epochs of "), std::string::npos)
      << output();
}

TEST_F(LaunchSft, AKillInItsMiddleLeavesTheSameWeights) {
  start_run("other");
  expect_done();
  start_run();
  ASSERT_TRUE(wait_until([&] {
    const auto trainers = workers("trainer");
    return has_saved() && !trainers.empty() && ::kill(trainers[0], SIGKILL) == 0;
  })) << output();
  expect_done();
  EXPECT_EQ(weights("run"), weights("other"));
  EXPECT_NE(read_file(paths().log("trainer", 0)).value().find("resumed stage=sft update="),
            std::string::npos);
}

TEST_F(LaunchSft, RanksTrainTheWeightsOfOne) {
  start_run("other", {"train.gradient_slots=2"});
  expect_done();
  start_run("run", {"train.gradient_slots=2", "train.ranks=2"});
  ASSERT_TRUE(wait_until([&] {
    const auto second = workers("trainer", 1);
    return has_saved() && !second.empty() && ::kill(second[0], SIGKILL) == 0;
  })) << output();
  expect_done();
  EXPECT_EQ(weights("run"), weights("other"));
}

TEST_F(LaunchSft, KeysOfReinforcementLearningHaveNoEffect) {
  for (const auto& [key, told] : {std::pair{"run.steps=3", "run.steps has no effect"},
                                  {"rollout.group_size=4", "rollout.group_size has no effect"},
                                  {"algo.kl.coef=0.1", "algo.kl.coef has no effect"},
                                  {"train.ranks=3", "train.ranks is 3"},
                                  {"sft.data=\"\"", "env.name is missing"}}) {
    start_run("run", {key});
    expect_refused(told);
  }
}

}  // namespace
}  // namespace tailrace
