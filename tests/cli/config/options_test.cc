#include "cli/config/options.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/config/datasets.h"
#include "cli/inputs/load.h"
#include "cli/inputs/rules.h"
#include "cli/prepare/setup.h"
#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

// Six lines: what a test adds begins in line 7.
constexpr const char* kExample =
    "run: {name: t, steps: 10}\n"
    "model:\n"
    "  create: {hidden_size: 64, layers: 2, heads: 4, kv_heads: 2}\n"
    "env: {name: frozen_grid}\n"
    "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128}\n"
    "eval: {prompts: 8}\n";

LoadedRun read(std::vector<std::string> overrides = {}, const std::string& text = kExample) {
  LoadedRun loaded;
  RunOptions options;
  loaded.keys = bind_config(parse_config(text, "a.yaml", overrides), options);
  validate(options, loaded.keys, built_in_registries());
  loaded.run = resolve(std::move(options));
  return loaded;
}

std::vector<int64_t> prompts_of_step(const ResolvedRun& run) {
  std::vector<int64_t> prompts;
  for (const RunDataset& dataset : run.datasets) prompts.push_back(dataset.prompts);
  return prompts;
}

std::string error_of(std::vector<std::string> overrides, const std::string& text = kExample) {
  try {
    read(overrides, text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(RunOptions, TheResolvedConfigLoadsBackToTheSame) {
  RunOptions options = read({"algo.name=dapo", "optim.schedule=cosine", "optim.min_lr_ratio=0.2",
                             "env.settings={max_turns: 9}"})
                           .run.options;
  std::string text = print_config(options);
  EXPECT_EQ(print_config(read({}, text).run.options), text);
}

// They would fill a disk: hundreds of versions of a large model.
TEST(RunOptions, OnlySmallVersionsOfSamplesAreKeptWhereNobodySays) {
  const LoadedRun small = read();
  EXPECT_TRUE(small.run.options.weights.keep_sampled);
  EXPECT_EQ(small.keys.source("weights.keep_sampled"), "default");
  const std::string wide = "model.create.hidden_size=1024", deep = "model.create.layers=4";
  const LoadedRun large = read({wide, deep});
  EXPECT_FALSE(large.run.options.weights.keep_sampled);
  EXPECT_EQ(large.keys.source("weights.keep_sampled").find("versions of "), 0u)
      << large.keys.source("weights.keep_sampled");
  EXPECT_TRUE(read({wide, deep, "weights.keep_sampled=true"}).run.options.weights.keep_sampled);
  EXPECT_FALSE(read({"weights.keep_sampled=false"}).run.options.weights.keep_sampled);
  // A run that goes on with other checkpoints comes to the same.
  EXPECT_FALSE(read({wide, deep, "checkpoint.interval_steps=1", "checkpoint.keep_last=1"})
                   .run.options.weights.keep_sampled);
}

// What configs/tinystories.yaml says of its own loss once undid a dr_grpo of the command line.
TEST(RunOptions, APresetOfTheCommandLineReplacesWhatTheFileSays) {
  const std::string text = std::string(kExample) +
                           "algo:\n  name: grpo\n  loss_agg: token_mean_global\n  clip_high: 0.5\n"
                           "  kl: {coef: 0.02, estimator: k3}\n"
                           "scheduler: {mode: async, ahead: 2, max_staleness: 3}\n";
  const LoadedRun file = read({}, text);
  EXPECT_EQ(file.run.options.algo.aggregation.kind, AggregationKind::kTokenMean);
  EXPECT_EQ(file.run.options.algo.surrogate.clip_high, 0.5);
  const LoadedRun loaded =
      read({"algo.name=dr_grpo", "algo.clip_low=0.1", "scheduler.mode=partial"}, text);
  const AlgoOptions& algo = loaded.run.options.algo;
  EXPECT_EQ(algo.aggregation.kind, AggregationKind::kSeqMeanTokenSumConst);
  EXPECT_EQ(algo.surrogate.clip_low, 0.1);
  EXPECT_EQ(algo.surrogate.clip_high, 0.2);
  EXPECT_EQ(algo.kl.coef, 0);
  EXPECT_EQ(loaded.run.options.scheduler.mode.ahead, 0);
  EXPECT_EQ(loaded.run.options.scheduler.mode.mode().max_staleness, 5);
  const auto& notes = loaded.keys.notes();
  EXPECT_NE(std::ranges::find(notes,
                              "override algo.name=dr_grpo: algo.name dr_grpo replaces "
                              "algo.clip_high (a.yaml:10), algo.loss_agg (a.yaml:9), algo.kl.coef "
                              "(a.yaml:11)"),
            notes.end());
  EXPECT_NE(std::ranges::find(notes,
                              "override scheduler.mode=partial: scheduler.mode partial replaces "
                              "scheduler.ahead (a.yaml:12), scheduler.max_staleness (a.yaml:12)"),
            notes.end());
  const std::string resolved = print_config(loaded.run.options);
  EXPECT_EQ(print_config(read({}, resolved).run.options), resolved);
  // Whoever continues the run with the same words has the same run.
  EXPECT_EQ(print_config(read({"algo.name=dr_grpo", "algo.clip_low=0.1"}, resolved).run.options),
            resolved);
}

TEST(RunOptions, TheConstantOfALossIsTheResponseLimit) {
  const auto constant = [](std::vector<std::string> overrides) {
    overrides.push_back("algo.name=dr_grpo");
    return read(overrides).run.options.algo.aggregation.const_tokens;
  };
  EXPECT_EQ(constant({"rollout.max_turns=3", "rollout.max_action_tokens=7"}), 21);
  EXPECT_EQ(constant({"rollout.max_action_tokens=1000"}), 128) << "the context";
  EXPECT_EQ(constant({"rollout.max_action_tokens=1000", "rollout.max_response_tokens=50"}), 50);
  EXPECT_EQ(constant({"algo.loss_const_tokens=9"}), 9);
  const LoadedRun loaded = read({"algo.name=dr_grpo", "rollout.max_turns=3"});
  EXPECT_EQ(loaded.keys.source("algo.loss_const_tokens"), "response limit: 3 turns x 3 tokens");
}

// An alias that names nothing would be refused with a list that does not have it.
TEST(RunOptions, EveryAliasIsAnotherSpellingOfAName) {
  int aliases = 0;
  for (const auto& [key, option] : options_by_key(RunOptions{})) {
    // The example of an item of a list is there for its help alone.
    if (key.find(".NAME.") != std::string::npos) continue;
    for (const auto& [alias, name] : option.aliases) {
      ++aliases;
      EXPECT_NE((option.accepted + ",").find(fmt::format(" {},", name)), std::string::npos) << key;
      EXPECT_EQ((option.accepted + ",").find(fmt::format(" {},", alias)), std::string::npos) << key;
      const std::vector<std::string> overrides = {fmt::format("{}={}", key, alias)};
      RunOptions options;
      bind_config(parse_config("env: {name: frozen_grid}", "a.yaml", overrides), options);
      EXPECT_EQ(options_by_key(options).at(key).value, name);
    }
  }
  EXPECT_GE(aliases, 3);
}

// A size without an end meets the end of the memory, or of 64 bits.
class RangeVisitor final : public OptionVisitor {
 public:
  void field(std::string_view, bool&, const OptionInfo&) override {}
  void field(std::string_view key, int64_t& value, const OptionInfo& info) override {
    check(key, static_cast<double>(value), info);
  }
  void field(std::string_view key, double& value, const OptionInfo& info) override {
    check(key, value, info);
  }
  void field(std::string_view, std::string&, const OptionInfo&) override {}
  void field(std::string_view key, std::vector<double>& values, const OptionInfo& info) override {
    for (double value : values) check(key, value, info);
  }
  void field(std::string_view, std::vector<std::string>&, const OptionInfo&) override {}
  void field(std::string_view, std::vector<std::pair<std::string, std::string>>&,
             const OptionInfo&) override {}
  int num_numbers = 0;

 private:
  void choice(std::string_view, size_t&, std::span<const std::string_view>,
              const OptionInfo&) override {}
  bool enter(std::string_view, std::string_view, const Idle&) override { return true; }
  void leave() override {}
  void check(std::string_view key, double value, const OptionInfo& info) {
    ++num_numbers;
    EXPECT_TRUE(std::isfinite(info.min) && std::isfinite(info.max)) << key;
    EXPECT_LE(info.max, kMaxExactInteger) << key;
    EXPECT_TRUE(info.min <= value && value <= info.max) << key << " is " << value;
  }
};

TEST(RunOptions, EveryNumberHasARangeAndItsDefaultLiesInIt) {
  RunOptions options;
  RangeVisitor visitor;
  options.visit(visitor);
  EXPECT_GT(visitor.num_numbers, 70);
}

TEST(RunOptions, ATemperatureIsZeroOrNotNearIt) {
  EXPECT_EQ(error_of({"rollout.sampling.temperature=0.001"}), "(no error)");
  EXPECT_EQ(error_of({"rollout.sampling.temperature=1e-300"}),
            "override rollout.sampling.temperature=1e-300: rollout.sampling.temperature is 1e-300; "
            "it must be 0 (greedy) or from 0.001 to 1000. Try 1.0.");
}

TEST(RunOptions, EveryConfigOfTheRepositoryIsValid) {
  int configs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TAILRACE_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++configs;
    if (entry.path().stem().extension() == ".hardware") continue;  // hardware_file_test.cc
    // Those are only simulated, and have neither a model nor an environment.
    if (entry.path().stem().string().starts_with("simulate_")) {
      EXPECT_NO_THROW(
          load_simulated_run(entry.path(), {}, load_hardware("h200", {}), built_in_registries()));
      continue;
    }
    std::vector<std::string> overrides;
    // Some run with any model, or with one that is not in the tree, and are given one.
    const std::string name = entry.path().stem().string();
    if (name.ends_with("gsm8k") || name.starts_with("smollm2"))
      overrides.push_back("model.path=" TAILRACE_SOURCE_DIR "/tests/data/models/stories260K");
    EXPECT_NO_THROW(load_run_options(entry.path(), overrides, built_in_registries()))
        << entry.path();
  }
  // Else a folder that has moved would pass.
  EXPECT_GE(configs, 2);
}

// A simulation that forgot what dapo says of the law told half of a run's cost.
TEST(RunOptions, ASimulationHasTheLawOfTheRun) {
  int compared = 0;
  std::set<bool> replaces;
  for (const std::string_view algo : kEnumNames<AlgoPreset>) {
    for (const std::string_view mode : kEnumNames<scheduler::ModeName>) {
      const std::vector<std::string> overrides = {fmt::format("algo.name={}", algo),
                                                  fmt::format("scheduler.mode={}", mode)};
      RunOptions simulated;
      ConfigKeys keys = bind_config(parse_config(kExample, "a.yaml", overrides), simulated);
      if (error_of(overrides) != "(no error)")
        continue;  // the preset and the mode do not go together
      validate_simulated(simulated, keys, built_in_registries());
      const scheduler::Config law = scheduler_config(read(overrides).run);
      EXPECT_EQ(scheduler_config(resolve(simulated)), law) << algo << " " << mode;
      replaces.insert(law.replace_zero_signal);
      ++compared;
    }
  }
  EXPECT_GE(compared, 40);
  EXPECT_EQ(replaces.size(), 2u) << "no preset differed";
}

TEST(Validate, RefusesKeysThatNothingReads) {
  EXPECT_EQ(error_of({"sft.epochs=3"}),
            "override sft.epochs=3: sft.epochs has no effect: neither sft.data nor "
            "sft.demonstrations is given. Remove it.");
  EXPECT_EQ(error_of({}, std::string(kExample) + "sft:\n  optim: {lr: 0.5}\n"),
            "a.yaml:8: sft.optim.lr has no effect: neither sft.data nor sft.demonstrations is "
            "given. Remove it.");
  EXPECT_EQ(error_of({"sft.epochs=1"}), "(no error)") << "the default changes nothing";
  // Each in one answer, and rules of other sections with them.
  const std::string all = error_of({"sft.epochs=3", "algo.kl.estimator=k1",
                                    "optim.min_lr_ratio=0.5", "train.microbatch_tokens=8"});
  for (const char* part : {"override sft.epochs=3: sft.epochs has no effect",
                           "override algo.kl.estimator=k1: algo.kl.estimator has no effect",
                           "override optim.min_lr_ratio=0.5: optim.min_lr_ratio has no effect",
                           "override train.microbatch_tokens=8: train.microbatch_tokens is 8"})
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  EXPECT_NE(
      error_of({"algo.kl.estimator=k1"}).find("algo.kl.estimator has no effect: algo.kl.coef is 0"),
      std::string::npos);
  EXPECT_NE(error_of({"optim.min_lr_ratio=0.5"}).find("has no effect: optim.schedule is constant"),
            std::string::npos);
  EXPECT_NE(
      error_of({"optim.momentum=0.9"}).find("optim.momentum has no effect: optim.kind is adamw"),
      std::string::npos);
  EXPECT_EQ(error_of({"optim.kind=muon", "optim.momentum=0.9"}), "(no error)");
  EXPECT_NE(
      error_of({"optim.kind=muon", "model.create.hidden_size=0", "model.path=m", "lora.rank=4"})
          .find("optim.kind is muon, which updates whole weight matrices, and the run trains "
                "an adapter. Use adamw."),
      std::string::npos);
  EXPECT_NE(error_of({"algo.correction.kind=none", "algo.correction.cap=3"})
                .find("algo.correction.cap has no effect"),
            std::string::npos);
  EXPECT_NE(error_of({"eval.prompts=0", "eval.interval_steps=5"})
                .find("eval.interval_steps has no effect"),
            std::string::npos);
  EXPECT_NE(error_of({"env.columns.prompt=text"})
                .find("env.columns has no effect: there is no env.dataset"),
            std::string::npos);
  EXPECT_NE(error_of({"env.dataset=x.jsonl"})
                .find("env.dataset has no effect: frozen_grid draws its own tasks"),
            std::string::npos);
  EXPECT_NE(error_of({"run.epochs=2"}).find("run.epochs has no effect"), std::string::npos);
}

// A group that nothing judges would end the run in its first step.
TEST(Validate, RefusesAFilterMetricWithoutAName) {
  for (const std::string name : {"", " ", "\\t", "env/", "env/ "})
    EXPECT_NE(error_of({"algo.filter_metric=\"" + name + "\""}).find("which names no metric"),
              std::string::npos)
        << name;
  EXPECT_EQ(error_of({"algo.filter_metric=\"\""}),
            "override algo.filter_metric=\"\": algo.filter_metric is '', which names no metric. "
            "Name a part of reward.parts or a metric, or leave the key out (reward).");
  EXPECT_EQ(error_of({"algo.filter_metric=env/success"}), "(no error)");
}

TEST(Validate, RefusesKeysOfTheLossThatItsSurrogateDoesNotRead) {
  EXPECT_EQ(error_of({"algo.surrogate=cispo", "algo.clip_low=0.1"}),
            "override algo.clip_low=0.1: algo.clip_low has no effect: surrogate cispo has no lower "
            "bound. Remove it.");
  EXPECT_EQ(error_of({"algo.surrogate=cispo", "algo.clip_high=4"}), "(no error)");
  EXPECT_EQ(error_of({"algo.surrogate=cispo", "algo.clip_c=3"}),
            "override algo.clip_c=3: algo.clip_c has no effect: surrogate cispo has no dual clip. "
            "Remove it.");
  EXPECT_NE(error_of({"algo.name=topr", "algo.clip_high=0.1"})
                .find("algo.clip_high has no effect: surrogate topr has no upper bound"),
            std::string::npos);
  EXPECT_EQ(error_of({"algo.loss_const_tokens=5"}),
            "override algo.loss_const_tokens=5: algo.loss_const_tokens has no effect: "
            "algo.loss_agg is token_mean_global, which divides by no constant. Remove it.");
  // Of a lower layer than the name it is no mistake.
  const std::string file = std::string(kExample) + "algo: {std_eps: 0.1, correction: {cap: 9}}\n";
  EXPECT_EQ(error_of({"algo.advantage=group_mean_std"}, file), "(no error)");
  const LoadedRun loaded = read({"algo.name=dr_grpo", "algo.correction.kind=none"}, file);
  EXPECT_EQ(loaded.run.options.algo.std_eps, AlgoOptions{}.std_eps);
  EXPECT_EQ(loaded.run.options.algo.correction.cap, AlgoOptions{}.correction.cap);
}

// What the quickstart config has, switched off on the command line.
TEST(Validate, AnOverrideThatSwitchesAPartOffTakesTheKeysOfTheFileAlong) {
  const std::string file = std::string(kExample) +
                           "sft: {demonstrations: 9, epochs: 2, optim: {lr: 0.5}}\n"
                           "algo: {kl: {coef: 0.1, estimator: k2}}\n";
  LoadedRun loaded = read({"sft.demonstrations=0", "eval.prompts=0", "algo.kl.coef=0"},
                          file + "checkpoint: {interval_steps: 7}\n");
  EXPECT_EQ(loaded.run.options.sft.epochs, SftOptions{}.epochs);
  EXPECT_EQ(loaded.run.options.sft.optim.lr, SftOptions{}.optim.lr);
  EXPECT_EQ(loaded.run.options.algo.kl.estimator, KlOptions{}.estimator);
  // What the switches do not touch stays as the file says.
  EXPECT_EQ(loaded.run.options.save.interval_steps, 7);
  EXPECT_EQ(loaded.run.options.env.name, "frozen_grid");
  EXPECT_EQ(loaded.keys.notes(),
            (std::vector<std::string>{
                "without effect, as neither sft.data nor sft.demonstrations is given: sft.epochs, "
                "sft.optim.lr",
                "without effect, as algo.kl.coef is 0: algo.kl.estimator"}));
  // The resolved config is one file, and holds nothing without effect.
  const std::string text = print_config(loaded.run.options);
  EXPECT_EQ(print_config(read({}, text).run.options), text);
  EXPECT_NO_THROW(load_run_options(
      std::string(TAILRACE_SOURCE_DIR) + "/configs/quickstart.yaml",
      std::vector<std::string>{"sft.demonstrations=0", "eval.prompts=0"}, built_in_registries()));
  // Of the same layer it stays a mistake, in any order.
  EXPECT_NE(
      error_of({"sft.epochs=3", "sft.demonstrations=0"}, file).find("sft.epochs has no effect"),
      std::string::npos);
}

TEST(Validate, AFileThatExtendsAnotherMaySwitchAPartOff) {
  TemporaryDirectory folder;
  folder.write("base.yaml", std::string(kExample) + "sft: {demonstrations: 9, epochs: 2}\n");
  auto path = folder.write("top.yaml", "extends: base.yaml\nsft: {demonstrations: 0}\n");
  EXPECT_EQ(load_run_options(path, {}, built_in_registries()).run.options.sft.epochs, 1);
  path = folder.write("top.yaml", "extends: base.yaml\nsft: {demonstrations: 0, epochs: 3}\n");
  EXPECT_THROW(load_run_options(path, {}, built_in_registries()), UserError);
}

TEST(Validate, RefusesMoreTurnsThanTheEnvironmentHas) {
  EXPECT_EQ(error_of({"rollout.max_turns=15"}),
            "override rollout.max_turns=15: rollout.max_turns has no effect: frozen_grid ends "
            "an episode after 14 turns. Remove it.");
  EXPECT_EQ(error_of({"rollout.max_turns=14"}), "(no error)");
}

// Lines 7 to 10, in the place of the section env.
std::string with_datasets(const std::string& items) {
  std::string text = kExample;
  text.replace(text.find("env: "), text.find("rollout: ") - text.find("env: "), "");
  return text + "datasets:\n" + items;
}
const std::string kTwoDatasets = with_datasets(
    "  - {name: grid, ratio: 3, env: frozen_grid, settings: {max_turns: 5}}\n"
    "  - {name: sums, env: calculator}\n");

TEST(Datasets, SeveralAreAList) {
  const ResolvedRun run = read({}, kTwoDatasets).run;
  EXPECT_EQ(prompts_of_step(run), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(dataset_names(run.datasets), (std::vector<std::string>{"grid", "sums"}));
  EXPECT_EQ(run.datasets[1].key("env"), "datasets.sums.env");
  const auto environments = built_in_registries().environments;
  const std::vector<std::string> words = vocabulary_of(run.datasets, environments);
  EXPECT_EQ(std::set<std::string>(words.begin(), words.end()).size(), words.size());
  const auto first = environments.make("frozen_grid", {})->info().vocabulary;
  EXPECT_TRUE(std::ranges::equal(first, std::span(words).first(first.size())));
  const auto second = environments.make("calculator", {})->info().vocabulary;
  for (const std::string& word : second)
    EXPECT_NE(std::ranges::find(words, word), words.end()) << word;
  // As a run keeps it, and with one that is named changed.
  const std::string text = print_config(run.options);
  EXPECT_EQ(print_config(read({}, text).run.options), text);
  EXPECT_EQ(prompts_of_step(read({"datasets.sums.ratio=3"}, text).run),
            (std::vector<int64_t>{2, 2}));
}

TEST(Datasets, TheSectionEnvIsAListOfOne) {
  const ResolvedRun run = read({"env.settings={max_turns: 5}"}).run;
  const std::vector<RunDataset>& datasets = run.datasets;
  ASSERT_EQ(datasets.size(), 1u);
  EXPECT_EQ(datasets[0].env, "frozen_grid");
  EXPECT_EQ(datasets[0].settings, run.options.env.settings);
  EXPECT_EQ(prompts_of_step(run), std::vector<int64_t>{4});
  EXPECT_EQ(datasets[0].key("env"), "env.name");
  EXPECT_EQ(datasets[0].key("eval_dataset"), "env.eval_dataset");
  EXPECT_TRUE(dataset_names(datasets).empty());
  EXPECT_EQ(vocabulary_of(datasets, built_in_registries().environments),
            built_in_registries().environments.make("frozen_grid", {})->info().vocabulary);
}

TEST(Datasets, MistakesAreNamedWithTheirLine) {
  const auto error = [](const std::string& items) { return error_of({}, with_datasets(items)); };
  const std::string grid = "  - {name: grid, env: frozen_grid}\n";
  EXPECT_EQ(error(grid + "  - {name: grid, env: calculator}\n"),
            "a.yaml:8: datasets[1].name is grid, as that of datasets[0] is. Give each a name of "
            "its own.");
  EXPECT_EQ(error(grid + "  - {name: a/b, env: calculator}\n"),
            "a.yaml:8: datasets[1].name is 'a/b'; it names metrics and keys, and is of letters, "
            "digits, _ and -. Try calculator.");
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculater}\n"),
            "a.yaml:8: there is no environment 'calculater'; did you mean 'calculator'? "
            "Environments: calculator, countdown, frozen_grid, paced, shopping, text");
  EXPECT_EQ(error(grid + "  - name: sums\n    env: calculator\n    settings: {max_turns: 1}\n")
                .find("a.yaml:10: environment calculator: max_turns is '1'; it must be"),
            0u)
      << error(grid + "  - name: sums\n    env: calculator\n    settings: {max_turns: 1}\n");
  EXPECT_EQ(error("  - {name: grid, env: frozen_grid, ratio: 0}\n"),
            "a.yaml:6: datasets have ratios that are all 0: nothing would be trained. Give at "
            "least one of them ratio: 1.");
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculator, ratio: 0.1}\n"),
            "a.yaml:8: datasets.sums gets no prompt: a step has 4 prompts "
            "(rollout.prompts_per_step), dealt by the ratios in whole ones. Try "
            "rollout.prompts_per_step=11, or ratio: 0 for one that is only evaluated.");
  // No step has so many prompts.
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculator, ratio: 1.0e-9}\n"),
            "a.yaml:8: datasets.sums gets no prompt: a step has 4 prompts "
            "(rollout.prompts_per_step), dealt by the ratios in whole ones. Try ratios that are "
            "nearer to each other (its own is 1e-09 of 1), or ratio: 0 for one that is only "
            "evaluated.");
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculator, ratio: 1.0e+9}\n"),
            "a.yaml:8: datasets.sums.ratio is 1.0e+9; it must be a number from 0 to 1000000. Try "
            "1.");
  EXPECT_EQ(
      error_of({"datasets.sums.ratio=0.1"}, kTwoDatasets)
          .find("override datasets.sums.ratio=0.1: datasets.sums gets no prompt: a step has 4"),
      0u);
  // It takes no part, as --dry-run says.
  EXPECT_EQ(error_of({"eval.prompts=0"},
                     with_datasets(grid + "  - {name: sums, env: calculator, ratio: 0}\n")),
            "(no error)");
  EXPECT_EQ(error(grid + "  - {name: text, env: text, settings: {verifier: number}}\n"),
            "a.yaml:8: datasets.text.env is text, which needs datasets.text.dataset: a JSONL file "
            "with a prompt in each row");
  EXPECT_EQ(error(grid + "  - {name: text, env: text, settings: {verifier: numbr}}\n")
                .find("a.yaml:8: there is no verifier 'numbr'"),
            0u);
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculator, dataset: x.jsonl}\n"),
            "a.yaml:8: datasets.sums.dataset has no effect: calculator draws its own tasks. "
            "Remove it.");
  EXPECT_EQ(error(grid + "  - {name: sums, env: calculator, epochs: 2}\n"),
            "a.yaml:8: datasets.sums.epochs has no effect: there is no dataset here, and only "
            "prompts of a file have epochs. Remove it.");
  EXPECT_EQ(error(grid + "  - {name: sums}\n")
                .find("a.yaml:8: datasets.sums.env is missing; it is required"),
            0u);
  EXPECT_EQ(error_of({"run.epochs=2"}, kTwoDatasets),
            "override run.epochs=2: run.epochs has no effect: the environments draw their tasks "
            "without end, only a dataset has epochs. Remove it.");
  EXPECT_EQ(error_of({"rollout.max_turns=6"}, kTwoDatasets),
            "override rollout.max_turns=6: rollout.max_turns has no effect: frozen_grid ends an "
            "episode after 5 turns. Remove it.");
}

TEST(Validate, RefusesKeysOfAProgramWhereNoEnvironmentIsOne) {
  EXPECT_EQ(error_of({"rollout.env_starts_at_once=2"}),
            "override rollout.env_starts_at_once=2: rollout.env_starts_at_once has no effect: the "
            "environment is no program (env.command). Remove it.");
  EXPECT_EQ(error_of({"rollout.start_timeout_s=200"}, kTwoDatasets),
            "override rollout.start_timeout_s=200: rollout.start_timeout_s has no effect: no "
            "environment of the datasets is a program (command). Remove it.");
  EXPECT_EQ(error_of({"rollout.start_timeout_s=120"}), "(no error)") << "the default";
  // The file below had a program, in whose place another environment was put.
  TemporaryDirectory folder;
  std::string base = kExample;
  base.replace(base.find("name: frozen_grid"), 17, "command: [cat]");
  base.replace(base.find("rollout: {"), 10, "rollout: {start_timeout_s: 200, ");
  folder.write("base.yaml", base);
  const auto path =
      folder.write("top.yaml", "extends: base.yaml\nenv: {command: [], name: frozen_grid}\n");
  EXPECT_EQ(load_run_options(path, {}, built_in_registries()).run.options.rollout.start_timeout_s,
            120);
}

TEST(Datasets, TakeThePlaceOfTheSectionEnv) {
  TemporaryDirectory folder;
  folder.write("base.yaml", kExample);
  const std::string list = "datasets:\n  - {name: sums, env: calculator}\n";
  auto path = folder.write("top.yaml", "extends: base.yaml\n" + list);
  const LoadedRun loaded = load_run_options(path, {}, built_in_registries());
  EXPECT_EQ(loaded.run.datasets[0].env, "calculator");
  EXPECT_EQ(loaded.run.options.env.name, "") << "that of base.yaml has no effect, and is not kept";
  EXPECT_TRUE(loaded.keys.notes().empty());
  // Of one person it is a contradiction.
  EXPECT_EQ(error_of({"env.name=paced"}, kTwoDatasets),
            "override env.name=paced: env.name has no effect: datasets lists what the policy acts "
            "in. Remove it.");
  EXPECT_EQ(error_of({"datasets=[]"}, kTwoDatasets).find("env.name is missing"), 0u)
      << error_of({"datasets=[]"}, kTwoDatasets);
}

TEST(Validate, APresetsOwnValueWithoutEffectIsNoMistake) {
  // The preset sets clip_low, which cispo does not read; nobody wrote it.
  const RunOptions options = read({"algo.name=gspo", "algo.surrogate=cispo"}).run.options;
  const std::string text = print_config(options);
  EXPECT_EQ(print_config(read({}, text).run.options), text);
}

TEST(Validate, AWarmUpFromRandomWeightsLearnsFasterThanOneOfPretrainedWeights) {
  EXPECT_EQ(read({"sft.demonstrations=9"}).run.options.sft.optim.lr, 1e-3);
  EXPECT_EQ(read({"sft.demonstrations=9", "sft.optim.lr=0.5"}).run.options.sft.optim.lr, 0.5);
  EXPECT_EQ(read().run.options.sft.optim.lr, 1e-5) << "no warm-up";
}

TEST(Validate, GivesEpisodesTheRoomThatThePolicyHas) {
  // The policy's max_positions, whose default is 256.
  EXPECT_EQ(read({"rollout.max_context_tokens=0"}).run.options.rollout.engine.max_context_tokens,
            256);
  EXPECT_EQ(read({"rollout.max_context_tokens=0", "train.microbatch_tokens=100"})
                .run.options.rollout.engine.max_context_tokens,
            100);
  EXPECT_EQ(read({"rollout.max_context_tokens=0", "rollout.max_prompt_tokens=20",
                  "rollout.max_response_tokens=30"})
                .run.options.rollout.engine.max_context_tokens,
            50);
}

TEST(Validate, RefusesSettingsOfAnotherEnvironment) {
  EXPECT_EQ(error_of({"env.settings.verifier=text_rules"}).substr(0, 48),
            "override env.settings.verifier=text_rules: envir");
  EXPECT_NE(error_of({"env.name=frozen_gird"}).find("frozen_grid"), std::string::npos);
  EXPECT_NE(
      error_of({"env.name=text", "env.settings.verifier=number"}).find("which needs env.dataset"),
      std::string::npos);
}

TEST(Validate, RefusesAVerifierThatIsNotThere) {
  EXPECT_EQ(error_of({"env.name=text", "env.settings.verifier=numbr"}),
            "override env.settings.verifier=numbr: there is no verifier 'numbr'; did you mean "
            "'number'? Verifiers: countdown, math, number, program, text_rules, and those of "
            "a reward.plugin");
}

TEST(Validate, NamesTheLineOfTheSettingOrTheSectionThatIsWrong) {
  const std::string file = std::string(kExample) + "algo:\n  clip_c: 0.5\n";
  EXPECT_EQ(error_of({}, file),
            "a.yaml:8: algo.clip_c is 0.5; it must be above 1, or 0 for off. Try algo.clip_c = 3.");
  EXPECT_EQ(error_of({"env.settings.max_turns=x"})
                .find("override env.settings.max_turns=x: environment frozen_grid: max_turns is "
                      "'x'; it must be"),
            0u);
  EXPECT_EQ(error_of({"env.name=countdown", "env.settings={min_numbers: 4, max_numbers: 3}"}),
            "override env.settings={min_numbers: 4, max_numbers: 3}: environment countdown: "
            "max_numbers is 3, below min_numbers 4");
  // What is wrong is a fallback, which stands nowhere.
  EXPECT_EQ(error_of({"env.name=countdown", "env.settings={min_numbers: 5}"}),
            "override env.name=countdown: environment countdown: max_numbers is 4, below "
            "min_numbers 5. Write env.settings.max_numbers.");
  EXPECT_EQ(error_of({"env.name=text", "env.settings={verifier: ''}"}),
            "override env.settings={verifier: ''}: environment text: verifier has no name; name "
            "one, for example math");
  EXPECT_EQ(error_of({"sft.data=x.jsonl", "sft.demonstrations=3"}),
            "override sft.data=x.jsonl: sft.data and sft.demonstrations are both set; the warm-up "
            "learns from one of them.");
  EXPECT_EQ(error_of({"sft.demonstrations=3", "sft.optim.betas=[0.9, 1]"}),
            "override sft.optim.betas=[0.9, 1]: sft.optim.betas holds 1; both must be from 0 to "
            "below 1. Try [0.9, 0.999].");
  EXPECT_EQ(error_of({"rollout.block_tokens=12"}),
            "override rollout.block_tokens=12: rollout.block_tokens is 12; it must be a power of "
            "two from 8 to 128.\n       Try rollout.block_tokens = 16.");
}

TEST(Validate, NamesTheLineOfAModelThatCannotBeRead) {
  const std::string error =
      error_of({"model.create.hidden_size=0", "model.create.layers=0", "model.create.heads=0",
                "model.create.kv_heads=0", "model.path=/no/model", "rollout.max_context_tokens=0"});
  EXPECT_EQ(error.find("override model.path=/no/model: model.path: /no/model/config.json: not "
                       "found"),
            0u)
      << error;
}

TEST(Validate, RefusesWhatCannotWork) {
  EXPECT_EQ(error_of({"rollout.sampling.temperature=0"}),
            "override rollout.sampling.temperature=0: rollout.sampling.temperature is 0; greedy "
            "members of a group are all the same and teach "
            "nothing. Try 1.0.");
  EXPECT_NE(error_of({"rollout.group_size=1"}).find("compares the members of a group. Try 8"),
            std::string::npos);
  EXPECT_EQ(error_of({"rollout.group_size=1", "algo.name=ppo"}), "(no error)");
  EXPECT_NE(error_of({"train.minibatches_per_step=5"}).find("more than the 4 groups of a step"),
            std::string::npos);
  EXPECT_NE(error_of({"train.microbatch_tokens=100"})
                .find("less than one whole sequence (rollout.max_context_tokens = 128). Try 128."),
            std::string::npos);
  EXPECT_EQ(
      error_of({"env.name=\"\"", "env.dataset=a.jsonl"}),
      "override env.name=\"\": env.name is missing; it names the environment ('tailrace env "
      "list' lists them). The prompts of env.dataset are answered once each by env.name: text.");
  EXPECT_NE(error_of({"rollout.max_context_tokens=512"})
                .find("the policy has model.create.max_positions = 256. Try "
                      "model.create.max_positions = 512."),
            std::string::npos);
}

constexpr const char* kRowsAlone =
    "sft: {data: a.jsonl}\n"
    "model: {path: MODEL}\n";

// Keys of steps in a run that learns from rows alone: what to write instead is said.
TEST(Validate, SupervisedTrainingNamesItsOwnKeys) {
  const auto message = [](const std::string& setting) {
    const std::string model = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K";
    return error_of({setting, "model.path=" + model}, kRowsAlone);
  };
  for (const auto& [setting, own] : std::initializer_list<std::pair<std::string, std::string>>{
           {"optim.lr=1e-3", "sft.optim.lr"},
           {"optim.schedule=cosine", "sft.optim.schedule"},
           {"optim.min_lr_ratio=0.5", "sft.optim.min_lr_ratio"},
           {"run.epochs=3", "sft.epochs"},
           {"run.steps=30", "sft.epochs"},
           {"checkpoint.interval_steps=7", "sft.checkpoint_updates"},
           {"eval.interval_steps=7", "sft.eval_updates"},
           {"rollout.prompts_per_step=7", "sft.batch_tokens"}})
    EXPECT_NE(message(setting).find("Write " + own + ", or remove it."), std::string::npos)
        << message(setting);
  EXPECT_NE(message("algo.clip_low=0.1").find("Remove it."), std::string::npos);
  // Items of a list have no default to be compared with.
  EXPECT_NE(message("rollout.pools=[{name: here, workers: 1}]").find("rollout.pools.here."),
            std::string::npos);
}

TEST(Validate, HeldOutRowsThatNothingEvaluatesAreNoted) {
  constexpr const char* kWithRows =
      "run: {steps: 10}\n"
      "model: {path: MODEL}\n"
      "env: {name: text, dataset: a.jsonl, eval_dataset: b.jsonl, settings: {verifier: math}}\n";
  const std::string model =
      "model.path=" + std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K";
  const auto notes = [&](std::vector<std::string> overrides) {
    overrides.push_back(model);
    return read(std::move(overrides), kWithRows).keys.notes();
  };
  EXPECT_EQ(notes({}), std::vector<std::string>{
                           "env.eval_dataset is not read, as eval.prompts is 0. Write "
                           "eval.prompts: N, its rows to evaluate (eval.prompts: 0 for none)"});
  EXPECT_TRUE(notes({"eval.prompts=0"}).empty());
  EXPECT_TRUE(notes({"eval.prompts=5"}).empty());
  EXPECT_NE(error_of({"eval.interval_steps=5", model}, kWithRows)
                .find("has no effect: eval.prompts is 0. Write eval.prompts: N, the held-out rows "
                      "to evaluate, or remove it."),
            std::string::npos);
}

TEST(Validate, RanksShareTheGradientSlotsEqually) {
  EXPECT_EQ(error_of({"train.ranks=4", "train.gradient_slots=12"}), "(no error)");
  EXPECT_NE(error_of({"train.ranks=3", "train.gradient_slots=6"})
                .find("train.ranks is 3; it must be a power of two. Try 2."),
            std::string::npos);
  EXPECT_NE(error_of({"train.ranks=4", "train.gradient_slots=6"})
                .find("train.ranks is 4, but train.gradient_slots = 6 cannot be shared by them "
                      "equally. Try train.ranks=2, or in a new run train.gradient_slots=8."),
            std::string::npos);
  EXPECT_NE(error_of({"scheduler.mode=streaming", "train.ranks=2", "train.gradient_slots=2"})
                .find("train.ranks is 2, but scheduler.hand_over is groups"),
            std::string::npos);
}

TEST(Validate, StreamingIsOneUpdateOfGroupsByThemselves) {
  EXPECT_EQ(error_of({"scheduler.mode=streaming"}), "(no error)");
  EXPECT_NE(error_of({"scheduler.mode=streaming", "train.ppo_epochs=2"})
                .find("train.ppo_epochs is 2, but scheduler.hand_over is groups"),
            std::string::npos);
  EXPECT_NE(error_of({"scheduler.hand_over=groups", "train.balance_coef=0.01"})
                .find("train.balance_coef is 0.01, a loss over all tokens of a step, but "),
            std::string::npos);
  EXPECT_NE(error_of({"scheduler.hand_over=groups", "train.minibatches_per_step=2"})
                .find("Try train.minibatches_per_step=1, or scheduler.hand_over=step."),
            std::string::npos);
  EXPECT_NE(error_of({"scheduler.mode=streaming", "algo.advantage=group_mean_batch_std"})
                .find("the first are trained before the last are sampled"),
            std::string::npos);
  EXPECT_NE(error_of({"scheduler.mode=streaming", "algo.correction.normalize=true"})
                .find("algo.correction.normalize is true, which divides by the mean weight"),
            std::string::npos);
}

TEST(Validate, KeptSetsNeedABoundAndTruncation) {
  EXPECT_EQ(error_of({"algo.sampling_mask=keep"}),
            "override algo.sampling_mask=keep: algo.sampling_mask has no effect: "
            "rollout.sampling.top_k, top_p and min_p are off and cut nothing. Remove it.");
  EXPECT_EQ(error_of({"algo.sampling_mask=keep", "rollout.sampling.top_p=0.9"}),
            "rollout.sampling.top_k is -1, but algo.sampling_mask is keep: the kept sets travel "
            "with the tokens, and top_k from 1 to 4096 bounds them. Try top_k=1000.");
  EXPECT_NE(error_of({"algo.sampling_mask=keep", "rollout.sampling.top_k=4097"})
                .find("rollout.sampling.top_k=4097: rollout.sampling.top_k is 4097"),
            std::string::npos);
  EXPECT_EQ(error_of({"algo.sampling_mask=keep", "rollout.sampling.top_k=4096"}), "(no error)");
  EXPECT_NE(error_of({"rollout.sampling.top_k=1"}).find("rollout.sampling.top_k is 1: every draw"),
            std::string::npos);
  EXPECT_NE(error_of({"rollout.sampling.min_p=1"}).find("rollout.sampling.min_p is 1: every draw"),
            std::string::npos);
  EXPECT_EQ(error_of({"rollout.sampling.min_p=0.5"}), "(no error)");
  // Of a token that was cut the sampling distribution says nothing.
  const std::string to_behaviour = "algo.kl.target=behaviour";
  EXPECT_NE(error_of({to_behaviour, "algo.kl.coef=0.1", "rollout.sampling.top_p=0.9"})
                .find("algo.kl.target is behaviour, but truncated sampling"),
            std::string::npos);
  EXPECT_EQ(error_of({to_behaviour, "algo.kl.coef=0.1"}), "(no error)");
  EXPECT_EQ(error_of({to_behaviour, "algo.kl.coef=0.1", "rollout.sampling.top_k=20",
                      "algo.sampling_mask=keep"}),
            "(no error)");
  // The product of the kept shares would forget long answers.
  const std::string by_sequence = "algo.correction.level=sequence";
  EXPECT_NE(error_of({by_sequence, "rollout.sampling.top_p=0.9"})
                .find("algo.correction.level is sequence, but truncated sampling"),
            std::string::npos);
  EXPECT_EQ(error_of({by_sequence}), "(no error)");
  EXPECT_EQ(error_of({by_sequence, "rollout.sampling.top_k=20", "algo.sampling_mask=keep"}),
            "(no error)");
  EXPECT_EQ(error_of({"algo.sampling_mask=keep", "rollout.sampling.top_k=20",
                      "rollout.sampling.min_p=0.1"}),
            "(no error)");
  EXPECT_NE(error_of({"algo.sampling_mask=keep", "rollout.sampling.top_k=4096",
                      "rollout.max_context_tokens=10000", "train.microbatch_tokens=10000",
                      "model.create.max_positions=10000"})
                .find("an episode of 10000 tokens then has kept sets of 40960000 ids, and 33554432 "
                      "can travel. Try top_k=3355."),
            std::string::npos);
}

// The command line over a file, a file over what it extends.
TEST(LoadRunOptions, OfTwoPoliciesTheOneOfTheHigherLayerStands) {
  const TemporaryDirectory folder;
  const std::string model = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K";
  const auto made = folder.write("made.yaml", kExample);
  const auto over = folder.write("over.yaml", "extends: made.yaml\nmodel: {path: " + model + "}\n");
  const auto load = [&](const std::filesystem::path& file, std::vector<std::string> overrides) {
    return load_run_options(file, overrides, built_in_registries());
  };
  const std::string path = "model.path=" + model;
  for (const LoadedRun& loaded : {load(made, {path}), load(over, {})}) {
    EXPECT_FALSE(loaded.run.options.model.creates());
    EXPECT_EQ(loaded.run.options.model.path, model);
    ASSERT_FALSE(loaded.keys.notes().empty());
    EXPECT_NE(loaded.keys.notes().back().find("replaces model.create of " + made.string()),
              std::string::npos)
        << loaded.keys.notes().back();
  }
  const LoadedRun back = load(over, {"model.create.hidden_size=32"});
  EXPECT_TRUE(back.run.options.model.creates());
  EXPECT_EQ(back.run.options.model.path, "");
  EXPECT_NE(back.keys.notes().back().find("replaces model.path of " + over.string()),
            std::string::npos);
  // Nobody can say which one is meant.
  EXPECT_THROW(load(made, {path, "model.create.hidden_size=32"}), UserError);
  const auto both = folder.write(
      "both.yaml", "extends: made.yaml\nmodel: {path: x, create: {hidden_size: 32}}\n");
  EXPECT_THROW(load(both, {}), UserError);
}

TEST(Validate, WantsOnePolicy) {
  EXPECT_NE(error_of({"model.path=/x"}).find("model.path and model.create are both given"),
            std::string::npos);
  EXPECT_NE(error_of({"model.create.hidden_size=0"}).find("model.path is missing"),
            std::string::npos);
  EXPECT_EQ(error_of({"model.create.hidden_size=66"}),
            "override model.create.hidden_size=66: model.create.hidden_size is 66; it must be a "
            "multiple of model.create.heads = 4. Try 72.");
  EXPECT_NE(error_of({"model.create.experts=2", "model.create.experts_per_token=3"})
                .find("is 3; there are 2 experts (model.create.experts). Try 1."),
            std::string::npos);
  EXPECT_NE(error_of({"model.create.experts=8", "model.create.experts_per_token=5"})
                .find("intermediate_size is 192, which model.create.experts_per_token = 5 experts "
                      "cannot share equally. Try 195."),
            std::string::npos);
  EXPECT_NE(error_of({"model.create.kv_heads=3"}).find("must be a multiple of it. Try 4."),
            std::string::npos);
  EXPECT_NE(error_of({"model.create.layers=0"}).find("model.create.layers is missing"),
            std::string::npos);
}

TEST(LoadRunOptions, NamesThePlaceOfAKeyThatItsOwnSectionRefuses) {
  TemporaryDirectory folder;
  auto path = folder.write("a.yaml", std::string(kExample) + "optim:\n  betas: [0.9]\n");
  try {
    load_run_options(path, {}, built_in_registries());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("a.yaml:8: optim.betas has 1 numbers"),
              std::string::npos)
        << error.what();
  }
}

TEST(LoadRunOptions, NamesTheFileAndLineOfAMistake) {
  TemporaryDirectory folder;
  auto path = folder.write("a.yaml", "env: {name: frozen_grid}\nrollout:\n  gruop_size: 4\n");
  try {
    load_run_options(path, {}, built_in_registries());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() +
                  ":3: rollout.gruop_size is not a known key; the nearest is rollout.group_size");
  }
}

TEST(ModelConfigOfCreate, FillsInWhatIsLeftOut) {
  ModelConfig config = model_config({.hidden_size = 64, .layers = 2, .heads = 4}, 44);
  EXPECT_EQ(config.intermediate_size, 192);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 44);
  EXPECT_NO_THROW(validate(config, "model.create"));
}

TEST(ModelConfigOfCreate, MakesExpertsAsWideTogetherAsALayer) {
  const ModelConfig config = model_config(
      {.hidden_size = 64, .layers = 2, .heads = 4, .experts = 8, .experts_per_token = 3}, 44);
  EXPECT_EQ(config.sparse, (std::vector<bool>{true, true}));
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_EQ(config.experts_per_token, 3);
  EXPECT_EQ(config.expert_size, 64);
  EXPECT_NO_THROW(validate(config, "model.create"));
}

}  // namespace
}  // namespace tailrace
