#include "cli/config/datasets.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "cli/config/stages.h"
#include "scheduler/state/quotas.h"

namespace tailrace {

bool supervised_only(const RunOptions& options) {
  // Where a plugin, a command or an agent gives the environment, its name may still be empty:
  // with_libraries() fills it in.
  return options.datasets.empty() && options.env.name.empty() && options.env.plugin.empty() &&
         options.env.command.empty() && !options.env.agent.plays() && has_row_files(options);
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

std::vector<RunDataset> datasets_of(const RunOptions& options) {
  std::vector<RunDataset> datasets;
  if (supervised_only(options)) return datasets;
  std::vector<std::string> names;
  for (const DatasetSection& given : options.datasets) names.push_back(given.name);
  for (size_t i = 0; i < names.size(); ++i)
    datasets.push_back({options.datasets[i], item_key("datasets", names, i)});
  if (datasets.empty()) {
    // The section env alone is a list of one dataset (law 1.1). Nobody behind this call tells the
    // two apart.
    const EnvSection& env = options.env;
    datasets.push_back({{.name = env.name,
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
                         .agent = env.agent},
                        "env",
                        /*listed=*/false});
  }
  const std::vector<int64_t> prompts = deal(datasets, options.step.prompts_per_step);
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (datasets[i].epochs == 0) datasets[i].epochs = options.run.epochs;
    datasets[i].prompts = prompts[i];
  }
  return datasets;
}

std::string RunDataset::key(std::string_view key) const {
  // A message names the key as the person has written it: in the section env, or in an item of the
  // list.
  if (listed) return join_key(item, key);
  return key == "epochs" ? "run.epochs" : join_key(item, key == "env" ? "name" : key);
}

RowsFile rows_of(const RunDataset& dataset, bool held_out) {
  const FittedFile& fitted = held_out ? dataset.fitted_eval : dataset.fitted;
  if (!fitted.file.empty()) return {.file = fitted.file, .columns = {}};
  return {.file = held_out ? dataset.eval_dataset : dataset.dataset, .columns = dataset.columns};
}

std::vector<int64_t> deal(std::span<const RunDataset> datasets, int64_t total) {
  std::vector<double> ratios;
  for (const RunDataset& dataset : datasets) ratios.push_back(dataset.ratio);
  return scheduler::quotas(total, ratios);
}

std::vector<std::string> dataset_names(std::span<const RunDataset> datasets) {
  std::vector<std::string> names;
  // Only several datasets have metrics of their own beside those of the run.
  if (datasets.size() < 2) return names;
  for (const RunDataset& dataset : datasets) names.push_back(dataset.name);
  return names;
}

std::vector<std::string> vocabulary_of(std::span<const RunDataset> datasets,
                                       const sandbox::EnvironmentRegistry& environments) {
  std::vector<std::string> words;
  std::set<std::string> known;
  for (const RunDataset& dataset : datasets) {
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
