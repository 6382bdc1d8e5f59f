#include "cli/inputs/dataset_rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "core/base/error.h"
#include "scheduler/state/quotas.h"

namespace tailrace {
namespace {

// Throws when nobody has the verifier that an environment names: the mistake is in the setting that
// gave the name, or else in the choice of the environment.
void check_verifier(const DatasetSection& dataset, const std::string& settings_key,
                    const sandbox::EnvironmentInfo& info, const VerifierRegistry& verifiers) {
  const std::string& name = info.verifier;
  if (name.empty()) return;
  try {
    verifiers.at(name);
  } catch (const UserError& error) {
    const auto setting = std::ranges::find(dataset.settings, name,
                                           &sandbox::EnvironmentSettings::value_type::second);
    throw setting == dataset.settings.end() ? error
                                            : error.about(join_key(settings_key, setting->first));
  }
}

}  // namespace

void validate_datasets(const RunOptions& o, std::span<const RunDataset> datasets,
                       const ConfigKeys& keys) {
  if (o.datasets.empty()) return;
  double sum = 0, least = 0;
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const RunDataset& dataset = datasets[i];
    const std::string key = dataset.key("name");
    if (!is_item_name(dataset.name))
      throw UserError::at(key,
                          "is '{}'; it names metrics and keys, and is of letters, digits, _ and -. "
                          "Try {}.",
                          dataset.name, is_item_name(dataset.env) ? dataset.env : "a");
    if (const auto [first, is_new] = known.emplace(dataset.name, i); !is_new)
      throw UserError::at(key, "is {}, as that of datasets[{}] is. Give each a name of its own.",
                          dataset.name, first->second);
    sum += dataset.ratio;
    if (dataset.ratio > 0 && (least == 0 || dataset.ratio < least)) least = dataset.ratio;
  }
  if (sum == 0)
    throw UserError::at("datasets",
                        "have ratios that are all 0: nothing would be trained. Give at least one "
                        "of them ratio: 1.");
  for (const RunDataset& dataset : datasets) {
    const std::string ratio = dataset.key("ratio");
    const ConfigPlace* given = keys.place(ratio);
    // A dataset without a share takes no part (law 3.7): a person who has given it a ratio would
    // never be told.
    if (dataset.ratio == 0 || dataset.prompts > 0) continue;
    // With so many its own share is one prompt.
    const double enough = std::ceil(sum / least);
    throw UserError(
        "{} gets no prompt: a step has {} (rollout.prompts_per_step), dealt by the ratios in whole "
        "ones. Try {}, or ratio: 0 for one that is only evaluated.",
        dataset.item, counted(o.step.prompts_per_step, "prompt"),
        enough <= scheduler::kMaxPrompts
            ? fmt::format("rollout.prompts_per_step={:.0f}", enough)
            : fmt::format("ratios that are nearer to each other (its own is {:g} of {:g})",
                          dataset.ratio, sum))
        .about(given != nullptr ? ratio : dataset.item);
  }
}

sandbox::EnvironmentInfo validate_dataset(const RunOptions& o, const RunDataset& dataset,
                                          const Registries& registries) {
  const auto key = [&](std::string_view name) { return dataset.key(name); };
  std::shared_ptr<const sandbox::EnvironmentSource> source;
  try {
    source = registries.environments.source(dataset.env, dataset.settings);
    check_verifier(dataset, key("settings"), source->info(), *registries.verifiers);
  } catch (const UserError& error) {
    // An environment knows its settings by the section `env`, and it may refuse one that is its
    // own fallback: that stands nowhere in the file.
    constexpr std::string_view kSettings = "env.settings.";
    if (!error.key().starts_with(kSettings)) throw error.about(key("env"));
    const std::string name = error.key().substr(kSettings.size());
    const bool is_given = std::ranges::any_of(
        dataset.settings, [&](const auto& setting) { return setting.first == name; });
    const std::string full = join_key(key("settings"), name);
    if (is_given) throw UserError("{}", error.what()).about(full);
    throw UserError("{}. Write {}.", error.what(), full).about(key("env"));
  }
  const sandbox::EnvironmentInfo& info = source->info();
  const bool trains = dataset.ratio > 0;
  if (o.model.creates() && dataset.too_long != TooLong::kRefuse)
    throw UserError::at(key("too_long"),
                        "has no effect: prompts for a policy of model.create are not measured "
                        "before the run. Remove it.");
  if (info.needs_dataset && dataset.dataset.empty() && trains)
    throw UserError::at(key("env"), "is {}, which needs {}: a JSONL file with a prompt in each row",
                        dataset.env, key("dataset"));
  for (const auto& [name, file] :
       {std::pair{"dataset", dataset.dataset}, {"eval_dataset", dataset.eval_dataset}}) {
    if (!info.needs_dataset && !file.empty())
      throw UserError::at(key(name), "has no effect: {} draws its own tasks. Remove it.",
                          dataset.env);
  }
  if (info.needs_dataset && o.eval.prompts > 0 && dataset.eval_dataset.empty())
    throw UserError::at(
        "eval.prompts",
        "is {} but {} is missing; evaluations need prompts of their own. Give it, or "
        "eval.prompts=0.",
        o.eval.prompts, key("eval_dataset"));
  if (o.model.creates() && info.vocabulary.empty())
    throw UserError(
        "model.create takes its vocabulary from the environment, and {} has none. Use model.path.",
        dataset.env)
        .about(key("env"));
  return info;
}

}  // namespace tailrace
