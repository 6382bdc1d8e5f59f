// The trainings on rows of a run, from sections and from the list, and the page that tells of them.
#include "cli/config/stages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/inputs/load.h"
#include "cli/inputs/resolved_run.h"
#include "cli/inputs/rules.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"
#include "core/run/run_directory.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/examples/page_blocks.h"

namespace tailrace {
namespace {

const std::string kModel = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K";
// Two lines: what follows begins in line 3.
const std::string kRows = "model: {path: " + kModel +
                          "}\n"
                          "rollout: {max_context_tokens: 128}\n";
const std::string kSteps = kRows + "env: {name: frozen_grid}\n";

RunOptions read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  RunOptions options;
  auto keys = bind_config(parse_config(text, "a.yaml", overrides), options);
  validate(options, keys, built_in_registries());
  return options;
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    read(text, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

void expect_error(const std::string& text, std::string_view told) {
  const std::string error = error_of(text);
  EXPECT_NE(error.find(told), std::string::npos) << error;
}

// "sft of stages[0].sft: 2 epochs".
std::vector<std::string> described(const RunOptions& options) {
  std::vector<std::string> texts;
  for (const RunStage& stage : stages_of(options))
    texts.push_back(fmt::format("{} of {}: {} epochs, {} updates", stage.name, stage.item,
                                stage.rows().epochs, stage.rows().updates));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Stages, SectionsFollowEachOtherInOneOrder) {
  const RunOptions options = read(kRows +
                                  "preference: {data: p.jsonl, loss: ipo}\n"
                                  "reward_model: {data: p.jsonl, updates: 7}\n"
                                  "sft: {data: s.jsonl, epochs: 3}\n");
  EXPECT_EQ(described(options), (Texts{"sft of sft: 3 epochs, 0 updates",
                                       "reward_model of reward_model: 1 epochs, 7 updates",
                                       "preference of preference: 1 epochs, 0 updates"}));
  const std::vector<RunStage> stages = stages_of(options);
  EXPECT_EQ(stages[2].key("data"), "preference.data");
  EXPECT_EQ(stages[2].kind(), "preference");
  EXPECT_TRUE(stages[2].trains_policy());
  EXPECT_FALSE(stages[1].trains_policy());
  EXPECT_EQ(std::get<PreferenceOptions>(stages[2].work).loss.kind, PreferenceLoss::kIpo);
  EXPECT_EQ(read(kRows + "preference: {data: p.jsonl, loss: dpo}\n").preference.loss.kind,
            PreferenceLoss::kSigmoid);
  EXPECT_TRUE(stages_of(read(kSteps)).empty());
  EXPECT_TRUE(has_row_files(options));
  EXPECT_FALSE(has_row_files(read(kSteps + "sft: {demonstrations: 3}\n")));
  EXPECT_TRUE(stages_of(read(kSteps + "sft: {demonstrations: 3}\n"))[0].has_demonstrations());
}

TEST(Stages, ItemsOfTheListAreInItsOrderWithTheirEnds) {
  const RunOptions options = read(kSteps +
                                  "stages:\n"
                                  "  - preference: {data: p.jsonl}\n"
                                  "    until: 200 updates\n"
                                  "  - sft: {data: s.jsonl}\n"
                                  "    until: 2 epochs\n"
                                  "  - sft: {data: s.jsonl, updates: 4}\n"
                                  "  - reward_model: {data: p.jsonl}\n"
                                  "    name: judge\n"
                                  "    until: 1 update\n"
                                  "  - rl: {}\n"
                                  "    until: 12 steps\n");
  EXPECT_EQ(described(options),
            (Texts{"preference of stages[0].preference: 200 epochs, 200 updates",
                   "sft of stages[1].sft: 2 epochs, 0 updates",
                   "sft_2 of stages[2].sft: 1 epochs, 4 updates",
                   "judge of stages.judge.reward_model: 1 epochs, 1 updates"}));
  EXPECT_EQ(steps_of_stages(options), 12);
  EXPECT_EQ(options.run.steps, 12);
  EXPECT_EQ(read(kSteps + "stages: [{rl: {steps: 5}}]\n").run.steps, 5);
  EXPECT_EQ(steps_of_stages(read(kSteps + "stages: [{rl: {}}]\n")), std::nullopt);
}

TEST(Stages, AnEndSaysWhatItCounts) {
  const auto with = [](const std::string& until) {
    return kRows + "stages:\n  - preference: {data: p.jsonl}\n    until: " + until + "\n";
  };
  for (const char* good : {"1 epoch", "2 epochs", "1 update", "200 updates"})
    EXPECT_EQ(error_of(with(good)), "(no error)") << good;
  for (const char* bad : {"5", "5 steps", "0 epochs", "-1 updates", "1.5 epochs", "five updates",
                          "5  updates", "updates", "99999999999999999999 updates"})
    EXPECT_EQ(error_of(with(bad)),
              fmt::format("a.yaml:5: stages[0].until is '{}'; it must be like '2 epochs' or '200 "
                          "updates'.",
                          bad));
  expect_error(kSteps + "stages:\n  - rl: {}\n    until: 2 epochs\n",
               "a.yaml:6: stages[0].until is '2 epochs'; it must be like '100 steps'.");
}

TEST(Stages, AnEndIsGivenOnce) {
  const auto with = [](const std::string& keys, const std::string& until) {
    return kRows + "stages:\n  - preference: {data: p.jsonl, " + keys + "}\n    until: " + until +
           "\n";
  };
  expect_error(with("updates: 3", "5 updates"),
               "a.yaml:5: stages[0].until and stages[0].preference.updates are both given.");
  expect_error(with("epochs: 3", "5 epochs"),
               "a.yaml:5: stages[0].until and stages[0].preference.epochs are both given.");
  // It ends with whichever comes first.
  EXPECT_EQ(error_of(with("updates: 3", "5 epochs")), "(no error)");
  expect_error(kSteps + "stages:\n  - rl: {steps: 4}\n    until: 5 steps\n",
               "stages[0].until and rl.steps are both given");
  expect_error(kSteps + "run: {steps: 4}\nstages:\n  - rl: {}\n    until: 5 steps\n",
               "run.steps is 4, and the last of stages ends after 5. Leave one out.");
}

// A launch that goes on has both from its stored config, and says itself to raise run.steps.
TEST(Stages, TheCommandLineChangesTheSteps) {
  const std::string stored = kSteps + "run: {steps: 5}\nstages:\n  - rl: {}\n    until: 5 steps\n";
  RunOptions options = read(stored, {"run.steps=8"});
  EXPECT_EQ(options.run.steps, 8);
  EXPECT_EQ(options.stages[0].until, "8 steps");
  options = read(stored, {"stages.0.until=9 steps"});
  EXPECT_EQ(options.run.steps, 9);
  options = read(kSteps + "run: {steps: 5}\nstages: [{rl: {steps: 5}}]\n", {"run.steps=8"});
  EXPECT_EQ(options.run.steps, 8);
  EXPECT_EQ(options.stages[0].rl.steps, 8);
}

TEST(Stages, ReinforcementLearningIsTheLastWhereThereIsAnEnvironment) {
  const std::string pairs = "  - preference: {data: p.jsonl}\n", rl = "  - rl: {}\n";
  EXPECT_EQ(error_of(kSteps + "stages:\n" + pairs + rl), "(no error)");
  EXPECT_EQ(error_of(kRows + "stages:\n" + pairs), "(no error)");
  expect_error(kSteps + "stages:\n" + rl + pairs,
               "stages[0] is the stage of reinforcement learning, or its rows are missing");
  expect_error(kSteps + "stages:\n" + pairs,
               "stages ends without reinforcement learning, and the run has an environment. Add an "
               "item 'rl: {}', or remove env.");
  expect_error(kRows + "stages:\n" + pairs + rl,
               "stages[1] names no rows (sft.data, reward_model.data, preference.data or "
               "distill.data), and the run has no environment");
  expect_error(kRows,
               "Training on rows alone needs sft.data, preference.data, reward_model.data or "
               "distill.data.");
}

TEST(Stages, AnItemIsOfOneKind) {
  expect_error(kRows + "stages:\n  - {preference: {data: p.jsonl}, sft: {data: s.jsonl}}\n",
               "a.yaml:4: stages[0] trains on sft.data and on preference.data. Make two items of "
               "them.");
  expect_error(kRows + "stages:\n  - preferences: {data: p.jsonl}\n",
               "a.yaml:4: stages[0].preferences is not a known key; the nearest is "
               "stages[0].preference");
  expect_error(kRows + "stages:\n  - preference: {data: p.jsonl}\nsft: {data: s.jsonl}\n",
               "a.yaml:5: sft.data has no effect: stages lists the trainings. Remove it.");
}

TEST(Stages, ANameIsOneOfAFileThatNobodyElseHas) {
  const auto named = [](const std::string& first, const std::string& second) {
    return fmt::format(
        "{}stages:\n  - {{name: '{}', preference: {{data: p.jsonl}}}}\n"
        "  - {{name: '{}', preference: {{data: p.jsonl}}}}\n",
        kRows, first, second);
  };
  EXPECT_EQ(error_of(named("first", "second-2_B")), "(no error)");
  expect_error(named("a", "a"),
               "stages[1].name is that of an earlier stage too. Give each stage a "
               "name of its own.");
  for (const char* bad : {"../a", "a b", "a/b", "-a", "a.b"})
    expect_error(named("a", bad), "it names files of the run, and may have up to 64 letters");
  for (const char* taken : {"checkpoints", "metrics", "weights", "step_000001", "sft_eval"})
    expect_error(named("a", taken), "which other files of the run are called");
  // A name that a kind would have goes to the item that asks for it first.
  const RunOptions options = read(kRows +
                                  "stages:\n"
                                  "  - preference: {data: p.jsonl}\n"
                                  "  - {name: preference, preference: {data: p.jsonl}}\n");
  EXPECT_EQ(stages_of(options)[1].name, "preference_2");
}

TEST(Stages, ARewardNamesAStageThatTrainsAModel) {
  const std::string trained = kSteps + "reward_model: {data: p.jsonl}\n";
  EXPECT_EQ(error_of(trained + "reward: {stage: reward_model}\n"), "(no error)");
  expect_error(trained + "reward: {stage: reward_modle}\n",
               "reward.stage is reward_modle, and the stages that train a reward model are "
               "reward_model.");
  expect_error(kSteps + "sft: {demonstrations: 4}\nreward: {stage: sft}\n",
               "reward.stage is sft, and no stage of the run trains a reward model. Write "
               "reward_model.data, or reward.model: DIR.");
}

TEST(Stages, AnAdapterTrainsNoRewardModel) {
  expect_error(kRows + "lora: {rank: 4}\nstages:\n  - reward_model: {data: p.jsonl}\n",
               "a.yaml:5: stages[0].reward_model.data is of a whole reward model");
  EXPECT_EQ(error_of(kRows + "lora: {rank: 4}\nstages:\n  - preference: {data: p.jsonl}\n"),
            "(no error)");
}

TEST(Stages, RulesOfALossNameTheItem) {
  expect_error(kRows + "stages:\n  - preference: {data: p.jsonl, loss: kto, batch_rows: 1}\n",
               "a.yaml:4: stages[0].preference.batch_rows is 1, but kto compares");
  expect_error(kRows + "preference: {data: p.jsonl, loss: simpo, label_smoothing: 0.1}\n",
               "a.yaml:3: preference.label_smoothing has no effect: preference.loss is simpo");
  expect_error(kRows + "preference: {data: p.jsonl, loss: rpo}\n",
               "a.yaml:3: preference.loss is rpo");
}

TEST(Stages, AKeyOfReinforcementLearningNamesThatOfTheFirstStage) {
  const std::string list = kRows + "stages:\n  - preference: {data: p.jsonl}\n";
  expect_error(list + "optim: {lr: 0.5}\n",
               "optim.lr has no effect: there is neither env nor datasets, and the run learns from "
               "rows alone. Write stages[0].preference.optim.lr, or remove it.");
  expect_error(kRows + "sft: {data: s.jsonl}\noptim: {lr: 0.5}\n",
               "Write sft.optim.lr, or remove it.");
}

// A launch writes the config and reads it again where the run goes on.
TEST(Stages, TheStoredConfigReadsBackToTheSame) {
  const TemporaryDirectory folder;
  const std::string lists =
      "stages:\n"
      "  - sft: {data: s.jsonl}\n"
      "    until: 5 updates\n"
      "  - {name: judge, reward_model: {data: p.jsonl, batch_rows: 16, optim: {lr: 1e-3}}, "
      "until: 2 epochs}\n"
      "  - preference: {data: p.jsonl, eval_data: h.jsonl, loss: ipo}\n"
      "    until: 12 updates\n";
  const std::string sections =
      "sft: {data: s.jsonl, updates: 5}\n"
      "preference: {data: p.jsonl, loss: kto, desirable_weight: 1.5}\n";
  for (const std::string& text :
       {kRows + lists, kRows + sections,
        kSteps + lists + "  - rl: {}\n    until: 3 steps\nreward: {stage: judge}\n"}) {
    const RunOptions options = read(text);
    const RunPaths paths{folder.path()};
    folder.write("config.yaml", prove_config("a test", print_config(options)));
    const LoadedRun stored = load_stored_run(paths, {}, built_in_registries());
    EXPECT_EQ(print_config(stored.run.options), print_config(options));
    EXPECT_EQ(described(stored.run.options), described(options));
  }
}

// ---- docs/preferences.md

std::string page() {
  return read_file(std::string(TAILRACE_SOURCE_DIR) + "/docs/preferences.md").value();
}

TEST(PreferencePage, HasARowOfEachLoss) {
  const std::string text = page();
  for (const std::string_view loss : kEnumNames<PreferenceLoss>)
    EXPECT_NE(text.find(fmt::format("\n| `{}` | ", loss)), std::string::npos) << loss;
}

TEST(PreferencePage, ItsConfigsAreSound) {
  int configs = 0;
  for (const PageBlock& block : blocks_of(page())) {
    if (block.language != "yaml") continue;
    ++configs;
    std::string text = block.text;
    const size_t at = text.find("DIR");
    if (at != std::string::npos) text.replace(at, 3, kModel);
    // The model has 512 positions.
    if (const size_t room = text.find("1024"); room != std::string::npos)
      text.replace(room, 4, "512");
    EXPECT_EQ(error_of(at == std::string::npos ? kSteps + text : text), "(no error)") << text;
  }
  EXPECT_EQ(configs, 3);
}

TEST(DistillationPage, ItsConfigsAreSound) {
  int configs = 0;
  for (const PageBlock& block :
       blocks_of(read_file(TAILRACE_SOURCE_DIR "/docs/distillation.md").value())) {
    if (block.language != "yaml") continue;
    ++configs;
    std::string text = block.text;
    // Parts of the config before them.
    if (text.find("policies:") == std::string::npos)
      text += "policies: [{name: teacher, model: TEACHER}]\n";
    if (text.find("STUDENT") == std::string::npos)
      text +=
          "model: {path: STUDENT}\nenv: {name: frozen_grid}\nrollout: {max_context_tokens: 256}\n";
    if (text.find("algo:") == std::string::npos && text.find("distill:") == std::string::npos)
      text += "algo: {distill: {policy: teacher}}\n";
    for (const auto& [name, value] :
         {std::pair<std::string, std::string>{"STUDENT", kModel}, {"TEACHER", kModel}})
      if (const size_t at = text.find(name); at != std::string::npos)
        text.replace(at, name.size(), value);
    // The model has 512 positions.
    if (const size_t room = text.find("1024"); room != std::string::npos)
      text.replace(room, 4, "512");
    EXPECT_EQ(error_of(text), "(no error)") << text;
  }
  EXPECT_EQ(configs, 4);
}

TEST(Stages, ATeacherOfRowsIsOneOfThePolicies) {
  const std::string teacher = "policies: [{name: t, model: " + kModel + "}]\n";
  const auto of = [&](const std::string& keys) {
    return kRows + teacher + "distill: {data: s.jsonl" + keys + "}\n";
  };
  const RunOptions options = read(of(", policy: t, beta: 0"));
  EXPECT_EQ(described(options), (Texts{"distill of distill: 1 epochs, 0 updates"}));
  const auto& work = std::get<DistillStageOptions>(stages_of(options)[0].work);
  EXPECT_EQ(work.loss.kind, DistillLoss::kJsd);
  EXPECT_EQ(work.loss.beta, 0);
  EXPECT_TRUE(stages_of(options)[0].trains_policy());
  EXPECT_EQ(described(read(kSteps + teacher +
                           "stages:\n  - distill: {data: s.jsonl, policy: t}\n"
                           "    until: 2 epochs\n  - distill: {data: s.jsonl, policy: t}\n"
                           "  - rl: {}\n    until: 3 steps\n")),
            (Texts{"distill of stages[0].distill: 2 epochs, 0 updates",
                   "distill_2 of stages[1].distill: 1 epochs, 0 updates"}));
  expect_error(of(""), "distill.policy is missing");
  expect_error(of(", policy: u"), "distill.policy is u, and `policies` has t");
  expect_error(kRows + "distill: {data: s.jsonl, policy: t}\n", "there are no `policies`");
  expect_error(kRows + teacher + "sft: {data: s.jsonl}\n", "is named by no key");
  expect_error(of(", policy: t, loss: policy_gradient"), "distill.loss is policy_gradient, which");
  expect_error(of(", policy: t, loss: ref_kl"), "Try jsd");
  expect_error(of(", policy: t, support: student"), "distill.support is student");
  expect_error(of(", policy: t, loss: k2, top_k: 3"), "distill.top_k");
}

}  // namespace
}  // namespace tailrace
