// Every row of the table, against the options that it names.
#include "cli/config/foreign_names.h"

#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/yaml_config.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using Options = std::map<std::string, OptionDoc>;
using Settings = std::vector<std::string>;

const Options& known() {
  static const Options options = options_by_key(RunOptions());
  return options;
}

std::string key_of(std::string_view setting) {
  return std::string(setting.substr(0, setting.find('=')));
}

// A name without sections in the section of our key.
std::string key_beside(const ForeignName& row) {
  return fmt::format("{}.{}", row.key.substr(0, row.key.rfind('.')), row.name);
}

Settings settings_of(std::string_view also, const std::string& value) {
  Settings settings;
  while (!also.empty()) {
    const size_t blank = std::min(also.find(' '), also.size());
    std::string setting(also.substr(0, blank));
    if (setting.ends_with("=*")) setting.replace(setting.size() - 1, 1, value);
    settings.push_back(setting);
    also.remove_prefix(std::min(blank + 1, also.size()));
  }
  return settings;
}

// Of an option, or of an entry of a map.
bool is_key(const std::string& key) {
  const auto map = known().find(key.substr(0, key.rfind('.')));
  return known().contains(key) || (map != known().end() && map->second.type == "map");
}

// A value of the option that is not its default.
std::string other_value(const std::string& key) {
  const auto found = known().find(key);
  if (found == known().end()) return "some";  // an entry of a map
  const OptionDoc& option = found->second;
  if (option.type == "integer") return fmt::format("{}", *option.integer + 2);
  if (option.accepted.starts_with("1 to ") && option.type == "number") return "1.5";
  if (option.type == "number") return option.value == "0.5" ? "0.25" : "0.5";
  if (option.type == "list of numbers") return "[0.5, 0.25]";
  if (option.type == "list of texts") return "[some]";
  if (option.type == "map") return "{a: b}";
  if (option.type == "true/false") return option.value == "true" ? "false" : "true";
  if (option.type == "path") return "/tmp/some";
  if (option.accepted.starts_with("one of: "))
    return option.accepted.substr(option.accepted.rfind(' ') + 1) == option.value
               ? option.accepted.substr(8, option.accepted.find(',') - 8)
               : option.accepted.substr(option.accepted.rfind(' ') + 1);
  return "some";
}

// The same as YAML that nests as the name does.
std::string nested(std::string_view name, const std::string& value) {
  std::string text, closing;
  for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1)) {
    text += fmt::format("{}: {{", name.substr(0, dot));
    closing += "}";
  }
  return fmt::format("{}{}: {}{}\n", text, name, value, closing);
}

std::string resolved(const std::string& text, const Settings& overrides = {}) {
  RunOptions options;
  try {
    bind_config(parse_config(text, "a.yaml", overrides), options, foreign_names());
  } catch (const UserError& error) {
    return std::string("refused: ") + error.what();
  }
  return print_config(options);
}

// The switch that a name needs, as an override: the one of its framework's section, or one without
// a section.
Settings switch_of(const ForeignName& row) {
  if (row.needs.empty()) return {};
  const std::string_view name = row.needs.substr(0, row.needs.find('='));
  const std::string_view section = row.name.substr(0, row.name.find('.') + 1);
  for (const ForeignName& other : foreign_names())
    if (other.name.substr(other.name.rfind('.') + 1) == name && other.name.starts_with(section) &&
        (!section.empty() || other.name == name))
      return {fmt::format("{}{}", other.name, row.needs.substr(name.size()))};
  ADD_FAILURE() << row.name << " needs " << row.needs;
  return {};
}

// Of a setting of ours, read without any table; empty: it is a key with such a value.
std::string refusal_of(const std::string& setting) {
  RunOptions options;
  try {
    bind_config(parse_config("env: {name: text}\n", "a.yaml", Settings{setting}), options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ForeignRows, NameKeysThatAreThereAndAreNoKeysThemselves) {
  std::set<std::string_view> names;
  for (const ForeignName& row : foreign_names()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " has two rows";
    EXPECT_FALSE(known().contains(std::string(row.name))) << row.name << " is a key of ours";
    EXPECT_TRUE(row.key.empty() || is_key(std::string(row.key)))
        << row.name << ": there is no " << row.key;
    if (row.name.find('.') == std::string_view::npos && !row.key.empty()) {
      const std::string beside = key_beside(row);
      EXPECT_TRUE(beside == row.key || !known().contains(beside)) << beside << " is a key of ours";
    }
    EXPECT_TRUE(!row.key.empty() || !row.told.empty()) << row.name << " says nothing";
    EXPECT_TRUE((row.only_with.empty() && row.needs.empty()) || !row.told.empty()) << row.name;
    for (const ForeignValue& value : row.values)
      for (const std::string& setting : settings_of(value.also, "1"))
        EXPECT_EQ(refusal_of(setting), "") << row.name;
    for (const std::string& setting : settings_of(row.only_with, "1"))
      EXPECT_EQ(refusal_of(setting), "") << row.name;
  }
  EXPECT_GT(names.size(), 200u);
}

// Our keys in the place of each name, one value at a time, give the same options.
TEST(ForeignRows, GiveTheOptionsThatOurKeysGive) {
  int compared = 0;
  std::set<std::string> whole;
  for (const ForeignName& row : foreign_names()) whole.emplace(row.name);
  for (const ForeignName& row : foreign_names()) {
    // A switch that says something itself is tried with its name in a test of its own.
    const bool any_value = !row.needs.empty() && row.needs.find('=') == std::string_view::npos;
    if (row.key.empty() || any_value || (!row.needs.empty() && !row.values.empty())) continue;
    const std::string key(row.key);
    std::vector<ForeignValue> values = row.values;
    if (values.empty()) values.push_back({.theirs = "*"});
    for (const ForeignValue& value : values) {
      if (!value.told.empty()) continue;
      const std::string theirs = value.theirs == "*" ? other_value(key) : std::string(value.theirs);
      Settings ours = settings_of(value.also, theirs);
      if (!value.ours.empty())
        ours.push_back(key + "=" + (value.ours == "*" ? theirs : std::string(value.ours)));
      const Settings with = switch_of(row);
      ours.insert(ours.end(), with.begin(), with.end());
      const std::string expected = resolved("env: {name: text}\n", ours);
      ASSERT_FALSE(expected.starts_with("refused")) << row.name << " = " << theirs << expected;
      const std::string setting = fmt::format("{}={}", row.name, theirs);
      const auto and_switch = [&](std::string own) {
        Settings all = with;
        all.push_back(std::move(own));
        return all;
      };
      EXPECT_EQ(resolved("env: {name: text}\n", and_switch(setting)), expected) << setting;
      EXPECT_EQ(resolved("env: {name: text}\n" + nested(row.name, theirs), with), expected)
          << setting;
      EXPECT_EQ(resolved(fmt::format("env: {{name: text}}\n{}: {}\n", row.name, theirs), with),
                expected)
          << setting;
      // Unless another framework calls something so: rollout.max_prompt_length.
      if (row.name.find('.') == std::string_view::npos && key_beside(row) != row.key &&
          !whole.contains(key_beside(row))) {
        EXPECT_EQ(resolved("env: {name: text}\n", and_switch(key_beside(row) + "=" + theirs)),
                  expected)
            << setting;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 120);
}

TEST(ForeignRows, SayWhatToWriteWhereTheyAreRefused) {
  const auto message = [](std::string_view name, const std::string& value,
                          const Settings& overrides = {}) {
    return resolved("env: {name: text}\n" + nested(name, value), overrides);
  };
  for (const ForeignName& row : foreign_names()) {
    if (row.key.empty()) {
      const std::string said = message(row.name, "7");
      const std::string told = fmt::format("refused: a.yaml:2: {}: {}", row.name, row.told);
      // What may be pasted stands below.
      EXPECT_TRUE(said == told || (!row.write.empty() && said.starts_with(told + "\n  ")))
          << said << "\n"
          << told;
    }
    for (const ForeignValue& value : row.values) {
      if (value.told.empty()) continue;
      const std::string theirs = value.theirs == "*" ? "7" : std::string(value.theirs);
      EXPECT_EQ(message(row.name, theirs),
                fmt::format("refused: a.yaml:2: {} is {}: {}", row.name, theirs, value.told));
    }
    if (!row.needs.empty()) {
      const std::string theirs = row.values.empty() ? "7" : std::string(row.values.front().theirs);
      EXPECT_EQ(message(row.name, theirs),
                fmt::format("refused: a.yaml:2: {}: {}", row.name, row.told));
    }
    for (std::string_view rest = row.only_with; !rest.empty();) {
      const size_t blank = std::min(rest.find(' '), rest.size());
      const std::string key = key_of(rest.substr(0, blank));
      EXPECT_EQ(message(row.name, "7", {key + "=3"}),
                fmt::format("refused: a.yaml:2: {} with {} = 3: {}", row.name, key, row.told));
      rest.remove_prefix(std::min(blank + 1, rest.size()));
    }
  }
}

// The words of a message that look like keys of ours.
std::vector<std::string> keys_in(std::string_view text) {
  static const std::set<std::string> sections = [] {
    std::set<std::string> names;
    for (const auto& [key, option] : known()) names.insert(key.substr(0, key.find('.')));
    return names;
  }();
  std::vector<std::string> found;
  while (!text.empty()) {
    const auto in_word = [](char c) { return std::isalnum(c) || c == '_' || c == '.'; };
    size_t length = 0;
    while (length < text.size() && in_word(text[length])) ++length;
    std::string word(text.substr(0, length));
    while (word.ends_with('.')) word.pop_back();
    if (word.find('.') != std::string::npos && sections.contains(word.substr(0, word.find('.'))))
      found.push_back(word);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return found;
}

// Else a key that changes its name leaves advice behind that cannot be followed.
TEST(ForeignRows, AdviseKeysThatAreThere) {
  int advised = 0;
  const auto check = [&](const ForeignName& row, std::string_view told) {
    for (const std::string& key : keys_in(told)) {
      // A map of the environment, a section, and a list of them.
      if (key.starts_with("env.settings.") || key == "rollout.sampling" || key == "reward.parts")
        continue;
      EXPECT_TRUE(known().contains(key)) << row.name << " advises " << key;
      ++advised;
    }
  };
  for (const ForeignName& row : foreign_names()) {
    check(row, row.told);
    for (const ForeignValue& value : row.values) check(row, value.told);
  }
  EXPECT_GT(advised, 100);
}

// A value of ours that a small run may have.
std::string fitting_value(const std::string& key) {
  if (key == "rollout.max_context_tokens" || key.ends_with("_tokens")) return "128";
  if (key == "lora.targets") return "[q_proj]";
  if (key == "algo.kl.estimator") return "k2";  // k1 has no gradient in the loss
  return other_value(key);
}

// The switch of a name with what that one wants besides, as far as the name does not give it.
Settings whole_switch_of(const ForeignName& row) {
  Settings settings = switch_of(row);
  if (settings.empty()) return settings;
  for (const ForeignName& other : foreign_names()) {
    if (other.name != key_of(settings.front())) continue;
    // Any value will do.
    if (settings.front() == other.name)
      settings.front() += fmt::format("={}", other.values.front().theirs);
    for (const ForeignValue& value : other.values)
      if (settings.front().ends_with(fmt::format("={}", value.theirs)) && !value.wants.empty() &&
          value.wants != row.key)
        settings.push_back(
            fmt::format("{}={}", value.wants, other_value(std::string(value.wants))));
  }
  return settings;
}

// A config of nothing but the least that a run needs, and one name: what the name sets besides is
// no mistake of a person who never wrote it.
TEST(ForeignRows, MakeARunOfAConfigOfNothingElse) {
  TemporaryDirectory folder;
  const std::string rows =
      folder.write("rows.jsonl", "{\"prompt\": \"1 + 1 =\", \"answer\": \"2\"}\n").string();
  const std::string model = TAILRACE_SOURCE_DIR "/tests/data/models/stories260K";
  const auto config = folder.write(
      "a.yaml", fmt::format("model: {{path: {}}}\n"
                            "env: {{name: text, dataset: rows.jsonl, eval_dataset: rows.jsonl,"
                            " settings: {{verifier: math}}}}\n"
                            "eval: {{prompts: 2}}\n"
                            "rollout: {{prompts_per_step: 4, max_context_tokens: 128}}\n"
                            "train: {{microbatch_tokens: 512}}\n",
                            model));
  const auto value_of = [&](const std::string& key) {
    if (key == "model.path") return model;
    return key.ends_with("dataset") ? rows : fitting_value(key);
  };
  const Registries registries = built_in_registries();
  int tried = 0;
  for (const ForeignName& row : foreign_names()) {
    if (row.key.empty()) continue;
    std::vector<ForeignValue> values = row.values;
    if (values.empty()) values.push_back({.theirs = "*"});
    for (const ForeignValue& value : values) {
      if (!value.told.empty() && value.wants.empty()) continue;
      const std::string theirs =
          value.theirs == "*" ? value_of(std::string(row.key)) : std::string(value.theirs);
      Settings overrides = whole_switch_of(row);
      overrides.push_back(fmt::format("{}={}", row.name, theirs));
      const std::string setting = overrides.back();
      if (!value.wants.empty())
        overrides.push_back(fmt::format("{}={}", value.wants, value_of(std::string(value.wants))));
      std::string error;
      try {
        load_run_options(config, overrides, registries);
      } catch (const UserError& refused) {
        error = refused.what();
      }
      // The key itself may be of no use in so small a run, or its value too far off.
      EXPECT_TRUE(error.empty() ||
                  error.starts_with(fmt::format("override {}: {} ", setting, row.key)))
          << setting << ": " << error;
      ++tried;
    }
  }
  EXPECT_GT(tried, 400);
}

// Such a config is read without the tables, and has to mean the same.
TEST(ForeignRows, AreNotNeededByAConfigOfOurKeysAlone) {
  const auto only_ours = [](const std::string& text, const Settings& overrides = {}) {
    return has_only_our_keys(parse_config(text, "a.yaml", overrides));
  };
  EXPECT_TRUE(only_ours("env: {name: text, settings: {anything: 1}}\noptim:\nrun: {steps: 3}\n"));
  EXPECT_TRUE(only_ours("datasets: [{name: a, agent: {command: [x]}}, {name: b, ratio: 2}]\n"));
  EXPECT_TRUE(only_ours(print_config(RunOptions())));
  EXPECT_TRUE(only_ours("{}\n", {"optim.lr=1"}));
  for (const char* text :
       {"seed: 1\n", "optim: {learning_rate: 1}\n", "optim: adamw\n",
        "algo: {advantage: {estimator: rloo}}\n", "env: {columns: {input_key: a}}\n",
        "max_steps: null\n", "datasets: [{name: a, n: 4}]\n", "datasets: [a]\n"})
    EXPECT_FALSE(only_ours(text)) << text;
  EXPECT_FALSE(only_ours("{}\n", {"seed=1"}));
  for (const ForeignName& row : foreign_names())
    EXPECT_FALSE(only_ours(nested(row.name, "1"))) << row.name;
}

// A whole config in a framework's own form.
TEST(ForeignRows, OfVerlAreReadAsTheFrameworkNestsThem) {
  const std::string theirs =
      "env: {name: text}\n"
      "data:\n"
      "  train_files: [/data/train.jsonl]\n"
      "  train_batch_size: 32\n"
      "  max_prompt_length: 128\n"
      "  max_response_length: 256\n"
      "actor_rollout_ref:\n"
      "  model: {path: /models/m}\n"
      "  actor:\n"
      "    optim: {lr: 1.0e-6}\n"
      "    use_kl_loss: True\n"
      "    kl_loss_coef: 0.01\n"
      "    kl_loss_type: low_var_kl\n"
      "    loss_agg_mode: token-mean\n"
      "  rollout: {n: 5, temperature: 0.8}\n"
      "algorithm: {adv_estimator: grpo, use_kl_in_reward: False}\n"
      "trainer: {total_epochs: 2, save_freq: 20, test_freq: 5, experiment_name: mine}\n";
  const std::string ours =
      "env: {name: text, dataset: /data/train.jsonl}\n"
      "model: {path: /models/m}\n"
      "run: {name: mine, epochs: 2, steps: 0}\n"
      "rollout:\n"
      "  prompts_per_step: 32\n"
      "  group_size: 5\n"
      "  max_prompt_tokens: 128\n"
      "  max_response_tokens: 256\n"
      "  max_action_tokens: 256\n"
      "  sampling: {temperature: 0.8}\n"
      "optim: {lr: 1.0e-6}\n"
      "algo: {kl: {coef: 0.01, estimator: k3}, loss_agg: token_mean_global, advantage: "
      "group_mean_std}\n"
      "checkpoint: {interval_steps: 20}\n"
      "eval: {interval_steps: 5}\n";
  EXPECT_EQ(resolved(theirs), resolved(ours));
  EXPECT_FALSE(resolved(ours).starts_with("refused"));
}

TEST(ForeignRows, OfTrlAreReadFromTheTop) {
  const std::string ours =
      "env: {name: text}\n"
      "model: {path: /models/m}\n"
      "run: {dir: /runs/a, seed: 42, steps: 500}\n"
      "rollout: {group_size: 4, max_response_tokens: 300, max_action_tokens: 300,"
      " sampling: {temperature: 0.9, top_p: 0.95, top_k: 0}}\n"
      "optim: {lr: 5.0e-6, weight_decay: 0.1, warmup_updates: 20, schedule: cosine,"
      " min_lr_ratio: 0, max_grad_norm: 0.2}\n"
      "algo: {kl: {coef: 0.04}, clip_low: 0.2, clip_high: 0.28, advantage: group_mean,"
      " loss_agg: seq_mean_token_mean, ratio: sequence}\n"
      "checkpoint: {interval_steps: 100, keep_last: 2}\n"
      "eval: {interval_steps: 50}\n";
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "model_name_or_path: /models/m\n"
                     "output_dir: /runs/a\nseed: 42\nmax_steps: 500\nnum_train_epochs: null\n"
                     "num_generations: 4\nmax_completion_length: 300\n"
                     "temperature: 0.9\ntop_p: 0.95\ntop_k: 0\n"
                     "learning_rate: 5.0e-6\nweight_decay: 0.1\nwarmup_steps: 20\n"
                     "lr_scheduler_type: cosine\nmax_grad_norm: 0.2\n"
                     "beta: 0.04\nepsilon: 0.2\nepsilon_high: 0.28\n"
                     "scale_rewards: False\nloss_type: grpo\n"
                     "importance_sampling_level: sequence\n"
                     "save_steps: 100\nsave_total_limit: 2\neval_steps: 50\n"),
            resolved(ours));
  EXPECT_FALSE(resolved(ours).starts_with("refused"));
}

TEST(ForeignRows, OfOpenRlhfAreReadWithDotsAndWithout) {
  const std::string ours =
      "env: {name: text, dataset: /data/a.jsonl, columns: {prompt: prompt}}\n"
      "model: {path: /models/m}\n"
      "rollout: {prompts_per_step: 128, group_size: 8, max_response_tokens: 1024,"
      " max_action_tokens: 1024}\n"
      "run: {epochs: 3, steps: 0}\n"
      "train: {microbatch_tokens: 8192}\n"
      "optim: {lr: 5.0e-7}\n"
      "algo: {advantage: leave_one_out, kl: {estimator: k2}}\n";
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "actor: {model_name_or_path: /models/m, adam: {lr: 5.0e-7}}\n"
                     "data: {prompt_dataset: /data/a.jsonl, input_key: prompt}\n"
                     "rollout: {batch_size: 128, n_samples_per_prompt: 8, max_new_tokens: 1024}\n"
                     "train: {num_episodes: 3, max_tokens_per_gpu: 8192}\n"
                     "algo: {advantage: {estimator: rloo}, kl: {estimator: k2}}\n"),
            resolved(ours));
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "pretrain: /models/m\nactor_learning_rate: 5.0e-7\n"
                     "prompt_data: /data/a.jsonl\ninput_key: prompt\n"
                     "rollout_batch_size: 128\nn_samples_per_prompt: 8\ngenerate_max_len: 1024\n"
                     "num_episodes: 3\ntrain_max_tokens_per_gpu: 8192\n"
                     "advantage_estimator: rloo\nkl_estimator: k2\n"),
            resolved(ours));
  EXPECT_FALSE(resolved(ours).starts_with("refused"));
}

TEST(ForeignRows, OfPrimeRlAreReadAsTheFrameworkNestsThem) {
  const std::string ours =
      "env: {name: text}\n"
      "model: {path: /models/m}\n"
      "run: {steps: 200}\n"
      "rollout: {group_size: 16, max_context_tokens: 4096, max_action_tokens: 512,"
      " sampling: {temperature: 0.7}}\n"
      "optim: {lr: 1.0e-5, weight_decay: 0, warmup_updates: 10}\n"
      "checkpoint: {interval_steps: 25}\n"
      "eval: {interval_steps: 100, group_size: 2, prompts: 64}\n"
      "scheduler: {max_staleness: 4}\n";
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "max_steps: 200\nseq_len: 4096\n"
                     "model: {name: /models/m}\n"
                     "trainer: {optim: {lr: 1.0e-5, weight_decay: 0.0},"
                     " scheduler: {warmup_steps: 10}}\n"
                     "orchestrator:\n"
                     "  max_off_policy_steps: 4\n"
                     "  train: {group_size: 16, sampling: {max_completion_tokens: 512,"
                     " temperature: 0.7}}\n"
                     "  eval: {interval: 100, rollouts_per_example: 2, num_examples: 64}\n"
                     "ckpt: {interval: 25}\n"),
            resolved(ours));
  EXPECT_FALSE(resolved(ours).starts_with("refused"));
}

// All that has to change, the rules of our own sections among it, in the order of the file.
TEST(ForeignRows, ThatAreRefusedAreToldTogetherWithOurRules) {
  TemporaryDirectory folder;
  const auto config = folder.write("a.yaml",
                                   "env: {name: text}\n"
                                   "trainer: {logger: console}\n"
                                   "data: {train_batch_size: 64}\n"
                                   "actor_rollout_ref: {actor: {ppo_mini_batch_size: 16}}\n");
  try {
    load_run_options(config, {}, built_in_registries());
    FAIL();
  } catch (const UserError& error) {
    const std::string text = error.what();
    size_t last = 0;
    for (const char* part :
         {":2: trainer.logger: each step goes to",
          ":4: actor_rollout_ref.actor.ppo_mini_batch_size: it",
          "16  ->  train.minibatches_per_step: 4  (at", "model.path is missing"}) {
      const size_t found = text.find(part, last);
      ASSERT_NE(found, std::string::npos) << part << "\n" << text;
      last = found;
    }
  }
}

// One word is a count of prompts in a framework and one of samples in another.
TEST(ForeignRows, OfAnUnknownNameAreHintedAtWithWhatEachMeans) {
  const std::string text = resolved("env: {name: text}\nbatch_size: 64\n");
  EXPECT_TRUE(
      text.starts_with("refused: a.yaml:2: batch_size is not a known key, and frameworks "
                       "differ in what they call so:\n"))
      << text;
  for (const char* part : {"orchestrator.batch_size of prime-rl: it counts samples.",
                           "rollout.batch_size of OpenRLHF; here it is called rollout.prompts_per_",
                           "train.batch_size of OpenRLHF: it counts samples of an update."})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  // A key alone only where a value can be carried over.
  EXPECT_EQ(resolved("env: {name: text}\nsome: {loss_agg_mode: token-mean}\n"),
            "refused: a.yaml:2: some.loss_agg_mode is not a known key; here it is called "
            "algo.loss_agg, whose values have other names");
  EXPECT_EQ(resolved("env: {name: text}\nsome: {learning_rate: 1}\n"),
            "refused: a.yaml:2: some.learning_rate is not a known key; here it is called optim.lr");
  for (const ForeignName& row : foreign_names()) {
    const std::string name(row.name.substr(row.name.rfind('.') + 1));
    if (!row.key.empty() || name.find('_') == std::string::npos) continue;
    const std::string said = resolved(fmt::format("env: {{name: text}}\nsome: {{{}: 1}}\n", name));
    EXPECT_FALSE(said.starts_with(
        fmt::format("refused: a.yaml:2: some.{} is not a known key; here it is called", name)))
        << said;
    EXPECT_NE(said.find(row.told), std::string::npos) << row.name << "\n" << said;
  }
}

TEST(ForeignRows, OfTheirSectionsAreNamedForWhatIsUnknownInThem) {
  const auto said = [](const std::string& text, const Settings& overrides = {}) {
    return resolved("env: {name: text}\n" + text, overrides);
  };
  EXPECT_EQ(said("trainer: {total_epoch: 3}\n"),
            "refused: a.yaml:2: trainer.total_epoch: no option of verl that is known; the nearest "
            "is trainer.total_epochs");
  EXPECT_EQ(said("data: {max_respons_length: 3, odd: True}\n"),
            "refused: a.yaml:2: data.max_respons_length: no option of verl that is known; the "
            "nearest is data.max_response_length\n"
            "       a.yaml:2: data.odd: no option of verl or OpenRLHF that is known; "
            "docs/coming-from.md lists them");
  EXPECT_EQ(said("", {"actor_rollout_ref.rolout.n=8"}),
            "refused: override actor_rollout_ref.rolout.n=8: actor_rollout_ref.rolout.n: no option "
            "of verl that is known; the nearest is actor_rollout_ref.rollout.n");
}

TEST(ForeignRows, AreNearToAMistypedName) {
  for (const auto& [name, nearest] : std::vector<std::pair<std::string, std::string>>{
           {"learning_rat", "learning_rate of TRL, here optim.lr"},
           {"num_generation", "num_generations of TRL, here rollout.group_size"},
           {"temprature", "temperature of TRL, OpenRLHF, here rollout.sampling.temperature"},
           {"optim.learnin_rate", "optim.learning_rate of TRL, here optim.lr"},
           {"optim.weigth_decay", "optim.weight_decay"},
           {"rollout.gruop_size", "rollout.group_size"}})
    EXPECT_EQ(resolved("env: {name: text}\n", {name + "=1"}),
              fmt::format("refused: override {0}=1: {0} is not a known key; the nearest is {1}",
                          name, nearest));
}

// What a refusal proposes is a line of a file, or a word of the command line, as it stands.
TEST(ForeignRows, ProposeWhatCanBePasted) {
  const auto config = [](std::string_view rollout) {
    return fmt::format(
        "env: {{name: text}}\nrollout: {{group_size: 8{}}}\ntrain: {{microbatch_tokens: 512}}\n"
        "algo: {{clip_c: 3}}\nscheduler: {{archive: true}}\n",
        rollout);
  };
  const auto lines_of = [](const std::string& message) {
    const size_t at = message.find("  ->  ");
    std::istringstream rest(at == std::string::npos ? "" : message.substr(at + 6));
    std::string lines, line;
    while (std::getline(rest, line)) {
      line.erase(0, line.find_first_not_of(' '));
      lines += line.substr(0, line.find("  (at the left margin)")) + "\n";
    }
    return lines;
  };
  int pasted = 0;
  for (const ForeignName& row : foreign_names()) {
    if (row.write.empty()) continue;
    const bool gives_prompts = row.write.starts_with("rollout.prompts_per_step=");
    const std::string begin = config(gives_prompts ? "" : ", prompts_per_step: 64");
    const bool is_ratio =
        row.write.find("coef") != row.write.npos || row.write.find("clip") != row.write.npos;
    const std::string value = is_ratio ? "0.5" : "8";
    const std::string lines = lines_of(resolved(fmt::format("{}{}: {}\n", begin, row.name, value)));
    const std::string words = lines_of(resolved(begin, {fmt::format("{}={}", row.name, value)}));
    for (const std::string& setting : settings_of(row.write, value)) {
      EXPECT_NE(lines.find(key_of(setting) + ": "), std::string::npos) << row.name << lines;
      EXPECT_NE(words.find(key_of(setting) + "="), std::string::npos) << row.name << words;
    }
    const Settings overrides = settings_of(words.substr(0, words.find('\n')), "");
    for (const std::string& text : {resolved(begin + lines), resolved(begin, overrides)}) {
      EXPECT_FALSE(text.starts_with("refused")) << row.name << lines << text;
      EXPECT_TRUE(text != resolved(begin)) << row.name << lines;
    }
    ++pasted;
  }
  EXPECT_GT(pasted, 15);
}

// Another context is no cure, as the lengths would refuse it.
TEST(ForeignRows, OfLengthsThatTheModelDoesNotHaveAreToldAsTheCause) {
  TemporaryDirectory folder;
  folder.write("rows.jsonl", "{\"prompt\": \"1 + 1 =\", \"answer\": \"2\"}\n");
  const auto refusal = [&](int prompt, int response) -> std::string {
    const auto config = folder.write(
        "a.yaml",
        fmt::format("model: {{path: {}/tests/data/models/stories260K}}\n"
                    "env: {{name: text, dataset: rows.jsonl, settings: {{verifier: math}}}}\n"
                    "data: {{max_prompt_length: {}, max_response_length: {}}}\n",
                    TAILRACE_SOURCE_DIR, prompt, response));
    try {
      load_run_options(config, {}, built_in_registries());
    } catch (const UserError& error) {
      return error.what();
    }
    return "(no error)";
  };
  const std::string text = refusal(200, 1024);
  EXPECT_NE(text.find("a.yaml:3: rollout.max_response_tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("with rollout.max_prompt_tokens = 200 an episode needs a context of 1224 "
                      "tokens; the model knows 512 (model.path).\n"
                      "       Lower both, or try rollout.max_response_tokens=312."),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("Try rollout.max_context_tokens"), std::string::npos) << text;
  EXPECT_NE(refusal(1024, 600).find("Lower both to a sum of 512."), std::string::npos);
  EXPECT_EQ(refusal(200, 312), "(no error)");
}

// A usual recipe of verl is told in one round what it lacks here, in the words that it has.
TEST(ForeignRows, OfARecipeAreToldWithTheRulesOfOurKeysAtOnce) {
  TemporaryDirectory folder;
  folder.write("rows.jsonl", "{\"prompt\": \"1 + 1 =\", \"answer\": \"2\"}\n");
  const auto refusal = [&](const char* lam, const char* rest) -> std::string {
    const auto config = folder.write(
        "a.yaml", fmt::format("model: {{path: {}/tests/data/models/stories260K}}\n"
                              "env: {{name: text}}\n"
                              "data: {{train_files: rows.jsonl, max_prompt_length: 512,"
                              " max_response_length: 1024}}\n"
                              "algorithm: {{adv_estimator: grpo, lam: {}}}\n"
                              "trainer: {{test_freq: 5, logger: console}}\n{}",
                              TAILRACE_SOURCE_DIR, lam, rest));
    try {
      load_run_options(config, {}, built_in_registries());
    } catch (const UserError& error) {
      return error.what();
    }
    return "(no error)";
  };
  const std::string text = refusal("0.9", "");
  for (const char* part :
       {":5: trainer.logger: each step goes to",
        ":3: rollout.max_response_tokens (written data.max_response_length) is 1024",
        "Write env.settings.verifier.", ":4: algo.lambda (written algorithm.lam) has no effect",
        ":5: eval.interval_steps (written trainer.test_freq) has no effect"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  // The default of verl, which prints it beside every estimator.
  EXPECT_EQ(refusal("1.0", "").find("algo.lambda"), std::string::npos);
  EXPECT_EQ(resolved("env: {name: text}\nalgorithm: {adv_estimator: gae, lam: 1.0}\n"),
            resolved("env: {name: text}\n"
                     "algo: {advantage: gae, lambda: 1, whiten_advantages: true}\n"));
}

TEST(ForeignRows, OfOneKeyAreAnErrorThatNamesBoth) {
  EXPECT_EQ(resolved("env: {name: text}\nlearning_rate: 1.0e-6\n"
                     "actor_rollout_ref: {actor: {optim: {lr: 1.0e-5}}}\n"),
            "refused: a.yaml:3: actor_rollout_ref.actor.optim.lr and learning_rate (at a.yaml:2) "
            "are two names of optim.lr. Remove one of them.");
  // It says that there is no penalty, and how large it is.
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "actor_rollout_ref: {actor: {use_kl_loss: false, kl_loss_coef: 0.1}}\n"),
            "refused: a.yaml:2: actor_rollout_ref.actor.kl_loss_coef: it counts with use_kl_loss: "
            "true alone, which is false by default in verl, and then there is no KL. Write "
            "algo.kl.coef, or remove it.");
}

// verl's coefficient is idle while its switch is off, whatever layer either is in.
TEST(ForeignRows, OfVerlsPenaltyCountWithItsSwitch) {
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string begin = "env: {name: text}\nactor_rollout_ref: {actor: ";
  const auto ours = [](const std::string& coef) {
    return resolved("env: {name: text}\nalgo: {kl: {coef: " + coef + "}}\n");
  };
  EXPECT_EQ(resolved(begin + "{kl_loss_coef: 0.05}}\n", {actor + "use_kl_loss=true"}),
            ours("0.05"));
  EXPECT_EQ(resolved(begin + "{use_kl_loss: True}}\n", {actor + "kl_loss_coef=0.05"}),
            ours("0.05"));
  EXPECT_EQ(resolved(begin + "{use_kl_loss: true}}\n"), ours("0.001"));
  EXPECT_EQ(resolved(begin + "{use_kl_loss: true, kl_loss_coef: 0.05}}\n", {"algo.kl.coef=0"}),
            ours("0"));
  EXPECT_EQ(resolved("env: {name: text}\nkl_loss_coef: 0.05\nuse_kl_loss: true\n"), ours("0.05"));
  const std::string off = "kl_loss_coef: it counts with use_kl_loss: true alone";
  for (const std::string& text :
       {resolved(begin + "{kl_loss_coef: 0.05}}\n"),
        resolved(begin + "{use_kl_loss: false}}\n", {actor + "kl_loss_coef=0.05"}),
        resolved(begin + "{use_kl_loss: true, kl_loss_coef: 0.05}}\n",
                 {actor + "use_kl_loss=false"}),
        resolved("env: {name: text}\nkl_loss_coef: 0.05\n"),
        resolved("env: {name: text}\nkl_loss_coef: 0.05\nuse_kl_loss: false\n")})
    EXPECT_NE(text.find(off), std::string::npos) << text;
  // One note for what each is.
  RunOptions options;
  const ConfigKeys keys =
      bind_config(parse_config(begin + "{use_kl_loss: true, kl_loss_coef: 0.05}}\n", "a.yaml", {}),
                  options, foreign_names());
  EXPECT_EQ(keys.notes(),
            (std::vector<std::string>{
                "a.yaml:2: actor_rollout_ref.actor.kl_loss_coef is read as algo.kl.coef",
                "a.yaml:2: actor_rollout_ref.actor.use_kl_loss = true is read as "
                "algo.kl.estimator = k3",
                "a.yaml:2: actor_rollout_ref.actor.use_kl_loss = true is read as "
                "algo.kl.placement = loss"}));
}

// In the reward and in the loss: the switches of verl, with what they say besides.
TEST(ForeignRows, OfVerlsPenaltyInTheRewardSayWhereItIs) {
  const auto theirs = [](const std::string& algorithm, const Settings& overrides = {}) {
    return resolved("env: {name: text}\nalgorithm: {" + algorithm + "}\n", overrides);
  };
  const auto ours = [](const std::string& coef) {
    return resolved("env: {name: text}\nalgo: {kl: {coef: " + coef +
                    ", placement: reward, estimator: k1}}\n");
  };
  EXPECT_EQ(theirs("use_kl_in_reward: True, kl_ctrl: {type: fixed, kl_coef: 0.05}"), ours("0.05"));
  EXPECT_EQ(theirs("use_kl_in_reward: True, kl_penalty: kl"), ours("0.001"));
  // The other switch is off, which is of the penalty in the loss alone.
  EXPECT_EQ(theirs("use_kl_in_reward: True", {"actor_rollout_ref.actor.use_kl_loss=false"}),
            ours("0.001"));
  EXPECT_EQ(theirs("use_kl_in_reward: True, kl_ctrl: {kl_coef: 0.05}",
                   {"actor_rollout_ref.actor.use_kl_loss=false"}),
            ours("0.05"));
  EXPECT_EQ(theirs("use_kl_in_reward: False"), resolved("env: {name: text}\n"));
  for (const auto& [config, part] : std::vector<std::pair<std::string, std::string>>{
           {"kl_ctrl: {kl_coef: 0.05}", "it counts with use_kl_in_reward: true alone"},
           {"use_kl_in_reward: false, kl_ctrl: {kl_coef: 0.05}", "use_kl_in_reward: true alone"},
           {"use_kl_in_reward: true, kl_penalty: low_var_kl", "only k1 has the gradient"},
           {"use_kl_in_reward: true, kl_ctrl: {type: adaptive}", "is constant (algo.kl.coef)"}}) {
    const std::string text = theirs(config);
    EXPECT_TRUE(text.starts_with("refused: a.yaml:2: algorithm.kl_")) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // Both at once is two penalties, and there is one.
  EXPECT_EQ(resolved("env: {name: text}\nalgorithm: {use_kl_in_reward: true}\n"
                     "actor_rollout_ref: {actor: {use_kl_loss: true}}\n"),
            "refused: a.yaml:3: actor_rollout_ref.actor.use_kl_loss = true and "
            "algorithm.use_kl_in_reward = true (at a.yaml:2) are two names of algo.kl.placement. "
            "Remove one of them.");
}

// OpenRLHF has one coefficient, which use_kl_loss moves from the reward to the loss.
TEST(ForeignRows, OfOpenRlhfsPenaltyAreInTheRewardUnlessTheLossIsSaid) {
  const auto ours = [](const std::string& rest) {
    return resolved("env: {name: text}\nalgo: {kl: {coef: 0.02, " + rest + "}}\n");
  };
  EXPECT_EQ(resolved("env: {name: text}\ninit_kl_coef: 0.02\n"),
            ours("placement: reward, estimator: k1"));
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "algo: {kl: {init_coef: 0.02, use_loss: true, estimator: k3}}\n"),
            ours("placement: loss, estimator: k3"));
  // The layer of either does not matter.
  EXPECT_EQ(
      resolved("env: {name: text}\nuse_kl_loss: true\nkl_estimator: k2\n", {"init_kl_coef=0.02"}),
      ours("placement: loss, estimator: k2"));
  EXPECT_EQ(
      resolved("env: {name: text}\ninit_kl_coef: 0.02\nkl_estimator: k2\n", {"use_kl_loss=true"}),
      ours("placement: loss, estimator: k2"));
}

// What a name switches on has the framework's value where nobody gives one, and is never off.
TEST(ForeignRows, BringTheDefaultsOfTheirFramework) {
  const auto same = [](const std::string& theirs, const std::string& ours) {
    const std::string text = resolved("env: {name: text}\n" + theirs);
    EXPECT_EQ(text, resolved("env: {name: text}\n" + ours)) << theirs;
    EXPECT_FALSE(text.starts_with("refused")) << theirs << text;
  };
  same("use_opsm: true\n", "algo: {correction: {sequence_mask: 0.0001}}\n");
  same("use_opsm: true\nopsm_delta: 0.1\n", "algo: {correction: {sequence_mask: 0.1}}\n");
  same("vllm_is_correction_type: icepop\n",
       "algo: {correction: {kind: icepop, low: 0.5, cap: 5}}\n");
  same("actor_rollout_ref: {model: {lora_rank: 8}}\n", "lora: {rank: 8, alpha: 16}\n");
  same("actor_rollout_ref: {model: {lora_rank: 8, lora_alpha: 4}}\n",
       "lora: {rank: 8, alpha: 4}\n");
  same("actor_rollout_ref: {model: {lora_rank: 0}}\n", "lora: {rank: 0}\n");
  same("lora_rank: 8\n", "lora: {rank: 8, alpha: 16}\n");
  same("lora_r: 8\nlora_target_modules: all-linear\n", "lora: {rank: 8}\n");
  same("use_peft: True\nlora_r: 8\nlora_target_modules: all-linear\n", "lora: {rank: 8}\n");
  same("lr: 1.0e-5\n", "optim: {lr: 1.0e-5}\n");
  same("vllm_importance_sampling_mode: token_truncate\n",
       "algo: {correction: {kind: tis, cap: 3}}\n");
  same("algorithm: {adv_estimator: gae}\n",
       "algo: {advantage: gae, whiten_advantages: true, lambda: 1}\n");
  same("algorithm: {filter_groups: {enable: True}}\n",
       "scheduler: {replace_zero_signal: true, max_gen_batches: 0}\n");
  same("algo: {kl: {use_loss: true, estimator: k2}}\n",
       "algo: {kl: {coef: 0.01, estimator: k2}}\n");
  const auto asks = [](const std::string& theirs, const std::string& part) {
    const std::string text = resolved("env: {name: text}\n" + theirs);
    EXPECT_NE(text.find(part), std::string::npos) << theirs << text;
  };
  asks("use_kl_loss: true\n", "the coefficient is missing");
  asks("lora_r: 8\n", "Write lora_target_modules");
  asks("use_peft: true\n", "Write lora_r beside it");
  asks("algo: {kl: {use_loss: true}}\n", "the estimator is k1 in OpenRLHF");
  asks("reward_model: {overlong_buffer: {enable: true}}\n", "Write len beside it");
}

// A recipe says these besides, and none of them means a thing.
TEST(ForeignRows, OfNeutralValuesSayNothing) {
  const std::string least = resolved("env: {name: text}\n");
  for (const char* theirs :
       {"actor_rollout_ref: {actor: {use_kl_loss: False, kl_loss_coef: 0.0}}",
        "algorithm: {use_kl_in_reward: False, kl_ctrl: {kl_coef: 0.0}}", "wandb:", "ckpt: {}",
        "push_to_hub: false", "warmup_ratio: 0.0", "report_to: none", "fp16: False",
        "custom_reward_function: {path: null, name: compute_score}",
        "actor_rollout_ref: {hybrid_engine: True, model: {use_shm: False}}",
        "data: {return_raw_chat: True}", "trainer: {resume_mode: auto}",
        "ref_model_sync_steps: 512", "use_peft: False", "max_samples: 1e8", "adam_offload: false",
        "flash_attn: true", "trainer: {n_gpus_per_node: 1, nnodes: 1}",
        "use_kl_loss: false\nkl_loss_coef: 0"})
    EXPECT_EQ(resolved(fmt::format("env: {{name: text}}\n{}\n", theirs)), least) << theirs;
}

// A step goes on from one pass to the next, and theirs do not.
TEST(ForeignRows, OfEpochsSayInTheLogWhatBecomesOfTheLastStep) {
  for (const char* name : {"num_train_epochs", "total_epochs", "num_episodes"}) {
    RunOptions options;
    const ConfigKeys keys =
        bind_config(parse_config(fmt::format("env: {{name: text}}\n{}: 2\n", name), "a.yaml", {}),
                    options, foreign_names());
    ASSERT_FALSE(keys.notes().empty());
    EXPECT_TRUE(keys.notes().front().starts_with(
        fmt::format("a.yaml:2: {}: steps go on from one pass to the next", name)))
        << keys.notes().front();
  }
}

// A PPO config of verl, beside our own section of the same name.
TEST(ForeignRows, OfVerlsCriticAreKeysOfOurs) {
  const std::string ours = resolved(
      "env: {name: text}\n"
      "algo: {advantage: gae, gamma: 0.99, lambda: 0.9, whiten_advantages: true}\n"
      "critic: {lr: 0.002, value_clip: 0.2, max_grad_norm: 2, warmup_steps: 0}\n");
  EXPECT_FALSE(ours.starts_with("refused")) << ours;
  EXPECT_EQ(resolved("env: {name: text}\n"
                     "algorithm: {adv_estimator: gae, gamma: 0.99, lam: 0.9}\n"
                     "critic: {lr: 0.002, cliprange_value: 0.2, grad_clip: 2}\n"
                     "trainer: {critic_warmup: 0}\n"),
            ours);
  const std::string rate = resolved("env: {name: text}\ncritic: {optim: {lr: 1.0e-5}}\n");
  EXPECT_TRUE(
      rate.starts_with("refused: a.yaml:2: critic.optim.lr: it is the rate of a whole "
                       "model there"))
      << rate;
  const std::string steps = resolved("env: {name: text}\ntrainer: {critic_warmup: 10}\n");
  EXPECT_NE(steps.find("the number less 1"), std::string::npos) << steps;
}

TEST(ForeignRows, OfTrlsCorrectionAreAKindAndALevel) {
  const auto ours = [](const std::string& correction) {
    return resolved("env: {name: text}\nalgo: {correction: {" + correction + "}}\n");
  };
  EXPECT_EQ(resolved("env: {name: text}\nvllm_importance_sampling_mode: sequence_mask\n"
                     "vllm_importance_sampling_cap: 3\n"),
            ours("kind: icepop, low: 0, level: sequence, cap: 3"));
  EXPECT_EQ(resolved("env: {name: text}\nvllm_importance_sampling_mode: token_truncate\n"),
            ours("kind: tis, level: token, cap: 3"));
  EXPECT_EQ(resolved("env: {name: text}\nvllm_importance_sampling_correction: false\n"),
            ours("kind: none"));
  const std::string alone = resolved("env: {name: text}\nvllm_importance_sampling_cap: 3\n");
  EXPECT_NE(alone.find("without it TRL leaves whole samples out"), std::string::npos) << alone;
}

// DAPO's penalty as its script for verl says it.
TEST(ForeignRows, OfVerlsOverlongBufferAreTheSectionLength) {
  EXPECT_EQ(
      resolved("env: {name: text}\n"
               "reward_model: {overlong_buffer: {enable: True, len: 4096, penalty_factor: 0.5}}\n"),
      resolved("env: {name: text}\n"
               "algo: {length: {penalty: soft_overlong, buffer: 4096, factor: 0.5}}\n"));
  EXPECT_EQ(resolved("env: {name: text}\noverlong_buffer_len: 4096\n"),
            resolved("env: {name: text}\n"
                     "algo: {length: {penalty: soft_overlong, buffer: 4096}}\n"));
  EXPECT_TRUE(resolved("env: {name: text}\nreward_model: {path: /m}\n").starts_with("refused"));
}

// verl filters before it truncates, and what the filter left has nothing to truncate.
TEST(ForeignRows, OfPromptsThatAreTooLongSayWhatBecomesOfThem) {
  const std::string begin = "env: {name: text, dataset: /a.jsonl}\n";
  const auto with = [](const char* too_long) {
    return resolved(
        fmt::format("env: {{name: text, dataset: /a.jsonl, too_long: {}}}\n", too_long));
  };
  EXPECT_EQ(resolved(begin + "data: {filter_overlong_prompts: True}\n"), with("drop"));
  EXPECT_EQ(resolved(begin + "data: {filter_overlong_prompts: True, truncation: error}\n"),
            with("drop"));
  EXPECT_EQ(resolved(begin + "data: {filter_overlong_prompts: True, truncation: left}\n"),
            with("drop"));
  EXPECT_EQ(resolved(begin + "data: {filter_overlong_prompts: False, truncation: error}\n"),
            with("refuse"));
  EXPECT_EQ(resolved(begin + "data: {truncation: left}\n"), with("cut"));
  EXPECT_EQ(resolved(begin + "data: {filter_overlong_prompts: False, truncation: left}\n"),
            with("cut"));
  const std::string right = resolved(begin + "data: {truncation: right}\n");
  EXPECT_NE(right.find("a prompt that is cut keeps its end here"), std::string::npos) << right;
  EXPECT_EQ(resolved(begin + "max_prompt_length: 512\n"),
            resolved("env: {name: text, dataset: /a.jsonl, too_long: cut}\n"
                     "rollout: {max_prompt_tokens: 512}\n"));
  EXPECT_EQ(resolved(begin + "max_prompt_length: null\n"), with("refuse"));
}

// A framework stops at the steps whatever the epochs are.
TEST(ForeignRows, OfEpochsWantNoStepsBesides) {
  EXPECT_EQ(resolved("env: {name: text}\nnum_train_epochs: 2\nmax_steps: -1\n"),
            resolved("env: {name: text}\nrun: {epochs: 2, steps: 0}\n"));
  EXPECT_EQ(
      resolved("env: {name: text}\nnum_train_epochs: 2\nmax_steps: 50\n"),
      "refused: a.yaml:2: num_train_epochs with run.steps = 50: max_steps decides in TRL, and "
      "here the run ends with what comes first. Remove one of them.");
}

// Both bounds of the clip range from one name, unless the upper one is given.
TEST(ForeignRows, OfTrlsClipRangeSetBothBounds) {
  EXPECT_EQ(resolved("env: {name: text}\nepsilon: 0.1\n"),
            resolved("env: {name: text}\nalgo: {clip_low: 0.1, clip_high: 0.1}\n"));
  EXPECT_EQ(resolved("env: {name: text}\nepsilon: 0.1\nepsilon_high: 0.3\n"),
            resolved("env: {name: text}\nalgo: {clip_low: 0.1, clip_high: 0.3}\n"));
}

std::string resolved_supervised(const std::string& text) {
  RunOptions options;
  try {
    const ConfigNode root = parse_config(text, "a.yaml", {});
    EXPECT_TRUE(is_supervised(root));
    bind_config(root, options, supervised_names());
  } catch (const UserError& error) {
    return std::string("refused: ") + error.what();
  }
  return print_config(options);
}

// What the supervised trainer of a framework calls so.
TEST(ForeignRows, OfSupervisedRunsAreTheKeysOfSft) {
  const std::string begin = "sft: {data: /a.jsonl}\n";
  EXPECT_EQ(
      resolved_supervised(begin + "learning_rate: 2.0e-5\nnum_train_epochs: 3\nsave_steps: 100\n"
                                  "eval_steps: 50\nlr_scheduler_type: cosine\nwarmup_steps: 10\n"
                                  "weight_decay: 0.1\nmax_grad_norm: 1\nmax_steps: -1\n"),
      resolved_supervised(
          "sft: {data: /a.jsonl, epochs: 3, checkpoint_updates: 100, eval_updates: 50,"
          " optim: {lr: 2.0e-5, schedule: cosine, min_lr_ratio: 0, warmup_updates: 10,"
          " weight_decay: 0.1, max_grad_norm: 1}}\n"));
  EXPECT_EQ(resolved_supervised(begin + "max_steps: 50\n"),
            "refused: a.yaml:2: max_steps is 50: a run that learns from sft.data alone ends with "
            "its epochs. Write sft.epochs.");
  EXPECT_EQ(
      resolved_supervised(begin + "warmup_ratio: 0.1\n"),
      "refused: a.yaml:2: warmup_ratio: write sft.optim.warmup_updates, a number of updates.");
  EXPECT_EQ(resolved_supervised(begin + "per_device_train_batch_size: 4\n"),
            "refused: a.yaml:2: per_device_train_batch_size: an update takes whole rows of "
            "sft.batch_tokens together. Write that, or remove it.");
  EXPECT_EQ(resolved_supervised(begin + "data: {truncation: right}\n"),
            resolved_supervised("sft: {data: /a.jsonl, too_long: cut}\n"));
  const std::string left = resolved_supervised(begin + "data: {truncation: left}\n");
  EXPECT_NE(left.find("a row that is cut keeps its beginning here"), std::string::npos) << left;
  EXPECT_NE(resolved_supervised(begin + "max_prompt_length: 512\n").find("sft.too_long"),
            std::string::npos);
  EXPECT_FALSE(is_supervised(parse_config("sft: {data: /a.jsonl}\nenv: {name: text}\n", "", {})));
  EXPECT_FALSE(is_supervised(parse_config("env: {name: text}\n", "", {})));
}

// They are ours wherever a key of ours is named.
TEST(ForeignRows, OfSupervisedRunsNameKeysThatAreThere) {
  for (const ForeignName& row : supervised_names()) {
    EXPECT_TRUE(row.key.empty() || is_key(std::string(row.key))) << row.name << ": " << row.key;
    for (const std::string& key : keys_in(row.told)) {
      EXPECT_TRUE(known().contains(key) || key.starts_with("env.settings.") ||
                  key == "rollout.sampling" || key == "reward.parts")
          << row.name << " advises " << key;
      const std::string_view own = supervised_key(key);
      EXPECT_TRUE(own.empty()) << row.name << " advises " << key << ", which is " << own
                               << " there";
    }
    for (const ForeignValue& value : row.values)
      for (const std::string& setting : settings_of(value.also, ""))
        EXPECT_TRUE(known().contains(key_of(setting))) << row.name << ": " << setting;
  }
}

TEST(ForeignRows, AreOnThePageForPeopleWhoComeFromElsewhere) {
  const auto page = read_file(std::string(TAILRACE_SOURCE_DIR) + "/docs/coming-from.md");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page.value(), coming_from_page())
      << "run: build/tailrace docs --names docs/coming-from.md";
}

}  // namespace
}  // namespace tailrace
