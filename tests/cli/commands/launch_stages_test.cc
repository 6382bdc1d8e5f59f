// A run of five stages: supervised rows, a reward model, preferences, distillation from rows, and
// reinforcement learning that the reward model rewards. It is killed in each of them and comes to
// the same bits.
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

constexpr int kRlSteps = 3;

class LaunchStages : public LaunchTest {
 protected:
  LaunchStages() {
    std::ofstream sft(folder_ / "sft.jsonl"), pairs(folder_ / "pairs.jsonl"),
        held_out(folder_ / "held_out.jsonl"), prompts(folder_ / "prompts.jsonl");
    for (int i = 0; i < 96; ++i) {
      const char* who[] = {"The cat", "A dog", "Tom", "Lily"};
      const char* good[] = {" was happy and smiled.", " found a red ball.", " laughed in the sun."};
      const char* bad[] = {" was sad.", " cried all day.", " fell down and hid."};
      const std::string prompt = fmt::format("{} went to the park. There it", who[i % 4]);
      sft << fmt::format(R"({{"prompt": "{}", "completion": "{}"}})"
                         "\n",
                         prompt, i % 2 ? good[i % 3] : bad[i % 3]);
      (i % 8 == 0 ? held_out : pairs)
          << fmt::format(R"({{"prompt": "{}", "chosen": "{}", "rejected": "{}"}})"
                         "\n",
                         prompt, good[i % 3], bad[(i + 1) % 3]);
      if (i < 12)
        prompts << fmt::format(R"({{"prompt": "{}"}})"
                               "\n",
                               prompt);
    }
    std::ofstream(folder_ / "tiny.yaml") << fmt::format(
        R"(run: {{name: staged, seed: 3}}
model: {{path: {0}/tests/data/models/stories260K}}
policies: [{{name: teacher, model: {0}/tests/data/models/stories260K}}]
stages:
  - sft: {{data: sft.jsonl, batch_tokens: 256, checkpoint_updates: 2, optim: {{lr: 1.0e-3}}}}
    until: 8 updates
  - reward_model:
      {{data: pairs.jsonl, eval_data: held_out.jsonl, batch_rows: 8, checkpoint_updates: 2,
       optim: {{lr: 1.0e-3}}}}
    until: 2 epochs
  - preference:
      {{data: pairs.jsonl, eval_data: held_out.jsonl, loss: ipo, batch_rows: 8,
       checkpoint_updates: 2, optim: {{lr: 1.0e-4}}}}
    until: 12 updates
  - distill:
      {{data: sft.jsonl, eval_data: sft.jsonl, policy: teacher, top_k: 8, batch_tokens: 256,
       checkpoint_updates: 2, optim: {{lr: 1.0e-3}}}}
    until: 12 updates
  - rl: {{}}
    until: {1} steps
env: {{name: text, dataset: prompts.jsonl}}
reward: {{stage: reward_model}}
rollout:
  {{prompts_per_step: 2, group_size: 4, max_context_tokens: 64, max_response_tokens: 12, workers: 1}}
optim: {{lr: 1.0e-4}}
train: {{microbatch_tokens: 256, threads: 1}}
checkpoint: {{interval_steps: 1}}
)",
        TAILRACE_SOURCE_DIR, kRlSteps);
  }

  std::string bytes(const std::string& run, const fs::path& file) const {
    const auto text = read_file(paths(run).root / file);
    EXPECT_TRUE(text) << file;
    return text ? text.value() : "";
  }
  bool has_saved(const std::string& stage) const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(paths().stage_checkpoints(stage), ignored))
      if (checkpoint_step(entry.path())) return true;
    return false;
  }
  bool kill_trainer(int rank = 0) const {
    const auto trainers = workers("trainer", rank);
    return !trainers.empty() && ::kill(trainers[0], SIGKILL) == 0;
  }
};

TEST_F(LaunchStages, AKillInEachStageLeavesTheSameWeights) {
  start_run("other");
  expect_done();
  const auto rows = read_metrics(paths("other").metrics());
  ASSERT_TRUE(rows) << rows.failure().message;
  const MetricsRow& last = rows.value().back();
  EXPECT_NE(last.find("reward/mean"), nullptr);
  EXPECT_GT(sum_of_rows("preference/updates", "other"), 0);
  // The teacher is the policy of the run's begin, from which it was trained away.
  std::vector<double> distances;
  for (const MetricsRow& row : rows.value())
    if (const double* loss = row.find("distill/eval_loss")) distances.push_back(*loss);
  ASSERT_GE(distances.size(), 2u);
  EXPECT_LT(distances.back(), .5 * distances.front());

  start_run();
  for (const char* stage : {"sft", "reward_model", "preference", "distill"})
    ASSERT_TRUE(wait_until([&] { return has_saved(stage) && kill_trainer(); }))
        << stage << output();
  ASSERT_TRUE(wait_until([&] { return has_step(1) && kill_trainer(); })) << output();
  expect_done();
  EXPECT_EQ(final_digest("run", kRlSteps), final_digest("other", kRlSteps));
  for (const char* file : {"reward_model/model.safetensors", "reward_model/config.json"})
    EXPECT_EQ(bytes("run", file), bytes("other", file)) << file;
  expect_each_step_once("run", kRlSteps);
  const std::string log = bytes("run", "logs/trainer-0.log");
  for (const char* stage : {"sft", "reward_model", "preference", "distill"})
    EXPECT_NE(log.find(fmt::format("resumed stage={} update=", stage)), std::string::npos) << stage;
  // Nothing of the stages stays but the reward model.
  for (const char* gone : {"checkpoints/sft", "checkpoints/reward_model", "checkpoints/preference",
                           "checkpoints/distill", "preference_reference.json", "distill_teacher"})
    EXPECT_FALSE(fs::exists(paths().root / gone)) << gone;
  // Each update of each stage is told once.
  const auto told = read_metrics(paths().metrics());
  ASSERT_TRUE(told) << told.failure().message;
  EXPECT_EQ(told.value().size(), rows.value().size());
}

// A launch that ends in a stage, by a person, is continued in it.
TEST_F(LaunchStages, APersonWhoStopsItGoesOnInTheSameStage) {
  start_run("other");
  expect_done();
  start_run();
  ASSERT_TRUE(wait_until([&] { return has_saved("preference"); })) << output();
  launched_->send_signal(SIGINT);
  finish();
  const std::string status = run_binary("status " + paths().root.string()).out;
  EXPECT_NE(status.find("stage 3 of 5, preference: "), std::string::npos) << status;
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest("run", kRlSteps), final_digest("other", kRlSteps));
}

TEST_F(LaunchStages, AStageGoesOnWithWhatItsTeacherSaidBeforeItAndNothingElse) {
  start_run();
  ASSERT_TRUE(wait_until([&] { return has_saved("distill"); })) << output();
  launched_->send_signal(SIGINT);
  finish();
  const fs::path file = paths().stage_teacher("distill");
  const std::string said = bytes("run", "distill_teacher");
  std::string flipped = said;
  flipped[flipped.size() / 2] ^= 1;
  const auto write = [&](const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  };
  for (const bool exists : {true, false}) {
    write(flipped);
    if (!exists) fs::remove(file);
    continue_run();
    EXPECT_FALSE(finish().ok());
    EXPECT_NE(output().find("distill_teacher is gone, damaged, or of other rows"),
              std::string::npos)
        << output();
  }
  write(said);
  continue_run();
  expect_done();
}

// Whichever of them is killed.
TEST_F(LaunchStages, RanksTrainEachStageToTheBitsOfOne) {
  start_run("other", {"train.gradient_slots=2"});
  expect_done();
  start_run("run", {"train.gradient_slots=2", "train.ranks=2"});
  int rank = 1;
  for (const char* stage : {"sft", "reward_model", "preference", "distill"}) {
    ASSERT_TRUE(wait_until([&] { return has_saved(stage) && kill_trainer(rank); }))
        << stage << output();
    rank = 1 - rank;
  }
  expect_done();
  EXPECT_EQ(final_digest("run", kRlSteps), final_digest("other", kRlSteps));
  EXPECT_EQ(bytes("run", "reward_model/model.safetensors"),
            bytes("other", "reward_model/model.safetensors"));
  for (int of = 0; of < 2; ++of) {
    const std::string log = bytes("run", fmt::format("logs/trainer-{}.log", of));
    for (const int version : {-1, 0})
      EXPECT_NE(log.find(fmt::format("rank {} of 2 is ready version={}", of, version)),
                std::string::npos);
  }
  // What is measured is told of all rows, whoever has measured them.
  for (const char* key : {"preference/loss", "eval_rewards/margins", "reward_model/eval_accuracy",
                          "distill/loss", "distill/eval_loss"})
    EXPECT_EQ(sum_of_rows(key, "run"), sum_of_rows(key, "other")) << key;
}

}  // namespace
}  // namespace tailrace
