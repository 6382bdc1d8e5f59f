#include "cli/run/datasets.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/run/counted.h"
#include "scheduler/state/quotas.h"

namespace tailrace {

bool supervised_only(const RunOptions& options) {
  // Where a plugin, a command or an agent gives the environment, its name may still be empty:
  // with_libraries() fills it in.
  return options.datasets.empty() && options.env.name.empty() && options.env.plugin.empty() &&
         options.env.command.empty() && !options.env.agent.plays() && !options.sft.data.empty();
}

std::string_view supervised_key(std::string_view key) {
  // Keys of reinforcement learning with what supervised training has in their place, for advice to
  // a person who has written the former.
  static const auto keys = [] {
    std::map<std::string, std::string, std::less<>> made = {
        {"run.epochs", "sft.epochs"},
        {"run.steps", "sft.epochs"},
        {"checkpoint.interval_steps", "sft.checkpoint_updates"},
        {"eval.interval_steps", "sft.eval_updates"},
        {"eval.prompts", "sft.eval_data"},
        {"env.dataset", "sft.data"},
        {"env.eval_dataset", "sft.eval_data"},
        {"env.columns", "sft.columns"},
        {"env.too_long", "sft.too_long"},
        {"env.columns.prompt", "sft.columns.prompt"},
        {"rollout.prompts_per_step", "sft.batch_tokens"},
        {"rollout.max_prompt_tokens", "rollout.max_context_tokens"},
        {"rollout.max_response_tokens", "rollout.max_context_tokens"},
        {"rollout.max_action_tokens", "rollout.max_context_tokens"}};
    constexpr std::string_view kSection = "sft.";
    for (const auto& [own, option] : options_by_key(RunOptions()))
      if (own.starts_with("sft.optim.")) made.emplace(own.substr(kSection.size()), own);
    return made;
  }();
  const auto found = keys.find(key);
  return found == keys.end() ? std::string_view() : found->second;
}

std::vector<DatasetSection> datasets_of(const RunOptions& options) {
  std::vector<DatasetSection> datasets = options.datasets;
  if (supervised_only(options)) return datasets;
  if (datasets.empty()) {
    // The section env alone is a list of one dataset (law 1.1). Nobody behind this call tells the
    // two apart.
    const EnvSection& env = options.env;
    datasets.push_back({.name = env.name,
                        .ratio = 1,
                        .env = env.name,
                        .plugin = env.plugin,
                        .command = env.command,
                        .isolation = env.isolation,
                        .settings = env.settings,
                        .dataset = env.dataset,
                        .eval_dataset = env.eval_dataset,
                        .columns = env.columns,
                        .too_long = env.too_long,
                        .agent = env.agent,
                        .fitted = env.fitted,
                        .fitted_eval = env.fitted_eval});
  }
  for (DatasetSection& dataset : datasets) {
    if (dataset.epochs == 0) dataset.epochs = options.run.epochs;
  }
  return datasets;
}

RowsFile rows_of(const DatasetSection& dataset, bool held_out) {
  const FittedFile& fitted = held_out ? dataset.fitted_eval : dataset.fitted;
  if (!fitted.file.empty()) return {.file = fitted.file, .columns = {}};
  return {.file = held_out ? dataset.eval_dataset : dataset.dataset, .columns = dataset.columns};
}

std::string dataset_key(const RunOptions& options, size_t index, std::string_view key) {
  // A message names the key as the person has written it: in the section env, or in an item of the
  // list.
  if (options.datasets.empty()) {
    if (key.empty()) return "env";
    return key == "epochs" ? "run.epochs" : join_key("env", key == "env" ? "name" : key);
  }
  std::vector<std::string> names;
  for (const DatasetSection& dataset : options.datasets) names.push_back(dataset.name);
  const std::string item = item_key("datasets", names, index);
  return key.empty() ? item : join_key(item, key);
}

std::vector<int64_t> deal(const RunOptions& options, int64_t total) {
  std::vector<double> ratios;
  for (const DatasetSection& dataset : datasets_of(options)) ratios.push_back(dataset.ratio);
  return scheduler::quotas(total, ratios);
}

std::vector<int64_t> prompts_of_step(const RunOptions& options) {
  return deal(options, options.step.prompts_per_step);
}

std::vector<std::string> dataset_names(const RunOptions& options) {
  std::vector<std::string> names;
  // Only several datasets have metrics of their own beside those of the run.
  if (options.datasets.size() < 2) return names;
  for (const DatasetSection& dataset : options.datasets) names.push_back(dataset.name);
  return names;
}

std::string epochs_text(const RunOptions& options) {
  if (supervised_only(options))
    return fmt::format("{} of {}", counted(options.sft.epochs, "epoch"), options.sft.data);
  std::vector<std::string> parts;
  for (const DatasetSection& dataset : datasets_of(options)) {
    if (dataset.ratio > 0)
      parts.push_back(fmt::format("{} of {}", counted(dataset.epochs, "epoch"), dataset.dataset));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> vocabulary_of(const RunOptions& options,
                                       const sandbox::EnvironmentRegistry& environments) {
  std::vector<std::string> words;
  std::set<std::string> known;
  for (const DatasetSection& dataset : datasets_of(options)) {
    const auto source = environments.source(dataset.env, dataset.settings);
    const std::vector<std::string>& own = source->info().vocabulary;
    // A word that one environment names twice is its mistake, and the tokenizer's to refuse.
    std::ranges::copy_if(own, std::back_inserter(words),
                         [&](const std::string& word) { return !known.contains(word); });
    known.insert(own.begin(), own.end());
  }
  return words;
}

}  // namespace tailrace
