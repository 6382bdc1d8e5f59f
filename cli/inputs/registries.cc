#include "cli/inputs/registries.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/config/datasets.h"
#include "cli/inputs/agents.h"
#include "cli/inputs/programs.h"
#include "cli/inputs/rewards.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/base/machine.h"
#include "core/base/nearest.h"
#include "reward/plugin/hosted_verifier.h"
#include "reward/plugin/plugin_verifier.h"
#include "sandbox/plugin/hosted_environment.h"

namespace tailrace {
namespace {

using sandbox::Declaration;
using sandbox::EnvironmentSettings;
using sandbox::PlaysIn;
using sandbox::UsedLibrary;
using Library = std::shared_ptr<UsedLibrary>;

std::vector<std::string> names_of(const std::vector<Declaration>& entries) {
  std::vector<std::string> names;
  for (const Declaration& entry : entries) names.push_back(entry.name);
  return names;
}

// Facts that a launch has written: a library's by its file, and those of a program by its command.
struct KnownFacts {
  std::map<std::string, sandbox::LibraryFacts> libraries;
  std::map<std::vector<std::string>, nlohmann::json> programs;
};

KnownFacts read_library_facts(const std::filesystem::path& file) {
  KnownFacts known;
  if (file.empty() || !std::filesystem::exists(file)) return known;
  const nlohmann::json said = read_proved_json(file);
  try {
    for (const auto& library : said.at("libraries"))
      known.libraries[library.at("file").get<std::string>()] = sandbox::facts_of_json(library);
    for (const auto& program : said.value("programs", nlohmann::json::array()))
      known.programs[program.at("command").get<std::vector<std::string>>()] = program;
  } catch (const std::exception& error) {
    throw UserError("{}: another build has written it ({}). A launch writes it anew.",
                    file.string(), error.what());
  }
  return known;
}

Library open_library(const std::string& file, LibraryUse use, const KnownFacts& known) {
  if (use == LibraryUse::kHere) return UsedLibrary::load(file);
  if (const auto found = known.libraries.find(file); found != known.libraries.end())
    return UsedLibrary::known(file, found->second);
  // In a process of its own: a library that crashes while it is loaded does not take the launch
  // along.
  return UsedLibrary::ask(file);
}

PlaysIn plays_in(LibraryUse use, Isolation isolation) {
  if (use == LibraryUse::kHere) return PlaysIn::kThisProcess;
  return use == LibraryUse::kApart || isolation == Isolation::kProcess ? PlaysIn::kOwnProcess
                                                                       : PlaysIn::kThisProcess;
}

// Each call of an episode ends a little before who plays it gives it up, and says why.
void add_environments(const Library& library, PlaysIn where, Time timeout,
                      sandbox::EnvironmentRegistry& environments) {
  for (const Declaration& entry : library->facts().environments)
    environments.add(
        entry, sandbox::EnvironmentRegistry::Sources(
                   [library, name = entry.name, where, timeout](const EnvironmentSettings& given) {
                     return source_of(library, name, given, where, a_little_less(timeout));
                   }));
}

void add_rewards(const Library& library, PlaysIn where, const EnvironmentSettings& settings,
                 bool proves, VerifierRegistry& verifiers) {
  for (const Declaration& entry : library->facts().rewards) {
    const EnvironmentSettings whole =
        complete_settings(entry.settings, settings, "reward " + entry.name, "reward.settings");
    // Now, so that settings that it refuses end the start and no score.
    if (proves) prove_reward(*library->hosted(), entry.name, whole, kScoreBudget);
    verifiers.add(entry.name, entry.help,
                  where == PlaysIn::kOwnProcess ? make_hosted_verifier(library, entry.name, whole)
                                                : make_plugin_verifier(library, entry.name, whole));
  }
}

// The name of an environment of `library`: the one that is given, or the only one.
void settle_name(const UsedLibrary& library, std::string& name) {
  const std::vector<std::string> names = names_of(library.facts().environments);
  const std::string file = library.file().string();
  if (names.empty()) throw UserError("has no use: {} has no environments", file);
  if (name.empty() && names.size() == 1) name = names.front();
  if (name.empty())
    throw UserError("is missing: {} has the environments {}", file, join_texts(names, ", "));
  if (std::ranges::find(names, name) == names.end())
    throw UserError("is '{}', which {} does not have{} It has {}.", name, file,
                    did_you_mean(name, names), join_texts(names, ", "));
}

// More at once than there are cores start no sooner, and are late sooner. A few more do where they
// wait, for a disk or a network.
int64_t starts_at_once(const RolloutOptions& rollout) {
  if (rollout.env_starts_at_once > 0) return rollout.env_starts_at_once;
  return std::clamp<int64_t>(num_usable_cores(), 4, 16);
}

// The programs of all datasets, each with the environment that it plays.
void add_programs(RunOptions& options, std::span<const RunDataset> datasets,
                  const KnownFacts& known, const sandbox::CommandLimits& limits, Registries& all) {
  check_environment_commands(datasets);
  std::map<std::vector<std::string>, std::pair<std::string, Isolation>> added;  // name
  for (size_t i = 0; i < datasets.size(); ++i) {
    const RunDataset& dataset = datasets[i];
    if (dataset.command.empty()) continue;
    const auto key = [&](std::string_view name) { return dataset.key(name); };
    // Datasets with the same command have one program, which is started and asked once.
    auto at = added.find(dataset.command);
    if (at == added.end()) {
      try {
        auto program = std::make_shared<sandbox::UsedProgram>(start_of(dataset), limits);
        if (const auto facts = known.programs.find(dataset.command); facts != known.programs.end())
          program->know(facts->second);
        const std::string name = program->info(dataset.settings).name;
        all.environments.add(
            {.name = name, .help = "of " + shown(program->start()), .settings = {}},
            sandbox::EnvironmentRegistry::Sources([program](const EnvironmentSettings& settings) {
              return sandbox::UsedProgram::source(program, settings);
            }));
        all.programs.push_back(program);
        at = added.emplace(dataset.command, std::pair(name, dataset.isolation)).first;
      } catch (const UserError& error) {
        throw UserError("{}", error.what()).about(key("command"));
      }
    }
    const auto& [name, isolation] = at->second;
    if (isolation != dataset.isolation)
      throw UserError::at(key("isolation"),
                          "is {}, and the same command of another dataset is {}. Say the same for "
                          "both.",
                          name_of(dataset.isolation), name_of(isolation));
    std::string& wanted = dataset.listed ? options.datasets[i].env : options.env.name;
    if (!wanted.empty() && wanted != name)
      throw UserError::at(key("env"), "is {}, and '{}' plays {}. Remove it.", wanted,
                          shown(start_of(dataset)), name);
    wanted = name;
  }
}

// How a config uses a library. What it does not say follows from what it does.
struct Use {
  std::string key, file;  // the first that names it
  std::optional<Isolation> environments, rewards;
  EnvironmentSettings reward_settings = {};
};

// One file may be named in two ways.
std::string file_id(const std::string& file) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(file, error);
  return error ? file : canonical.string();
}

// By file_id().
std::map<std::string, Use> uses_of(const RewardSection& reward,
                                   std::span<const RunDataset> datasets) {
  std::map<std::string, Use> uses;
  for (const RunDataset& dataset : datasets) {
    if (dataset.plugin.empty()) continue;
    Use& use = uses.try_emplace(file_id(dataset.plugin),
                                Use{dataset.key("plugin"), dataset.plugin, {}, {}})
                   .first->second;
    if (use.environments.value_or(dataset.isolation) != dataset.isolation)
      throw UserError::at(dataset.key("isolation"),
                          "is {}, and {} of another dataset is {}: the environments of a library "
                          "play in one way. Say the same for both.",
                          name_of(dataset.isolation), dataset.plugin, name_of(*use.environments));
    use.environments = dataset.isolation;
  }
  if (reward.plugin.empty()) {
    if (!reward.settings.empty())
      throw UserError::at("reward.settings", "has no effect without reward.plugin. Remove it.");
    return uses;
  }
  Use& use = uses.try_emplace(file_id(reward.plugin), Use{"reward.plugin", reward.plugin, {}, {}})
                 .first->second;
  use.rewards = reward.isolation == Isolation::kNone ? Isolation::kNone : Isolation::kProcess;
  use.reward_settings = reward.settings;
  return uses;
}

}  // namespace

Registries with_libraries(const Registries& built_in, RunOptions& options, LibraryUse use,
                          const std::filesystem::path& file_of_known) {
  Registries all = built_in;
  VerifierRegistry verifiers = *built_in.verifiers;
  // A launch asks anew: what it finds is what its run will have.
  const KnownFacts known =
      use == LibraryUse::kOfRun ? read_library_facts(file_of_known) : KnownFacts();
  const auto seconds = [](double number) {
    return std::chrono::duration_cast<Time>(std::chrono::duration<double>(number));
  };
  const Time timeout = seconds(options.rollout.step_timeout_s);
  const std::vector<RunDataset> datasets = datasets_of(options);
  std::map<std::string, Library> libraries;
  for (const auto& [id, how] : uses_of(options.reward, datasets)) {
    try {
      const Library library = open_library(how.file, use, known);
      const Isolation environments = how.environments ? *how.environments : *how.rewards;
      add_environments(library, plays_in(use, environments), timeout, all.environments);
      add_rewards(library, plays_in(use, how.rewards.value_or(environments)), how.reward_settings,
                  use == LibraryUse::kApart, verifiers);
      all.libraries.push_back(library);
      libraries[id] = library;
    } catch (const UserError& error) {
      // An error about a setting is the setting's own, where it is given.
      const bool is_placed = std::ranges::any_of(how.reward_settings, [&](const auto& setting) {
        return error.key() == join_key("reward.settings", setting.first);
      });
      throw is_placed ? error : UserError("{}", error.what()).about(how.key);
    }
  }
  if (!options.reward.plugin.empty() &&
      libraries.at(file_id(options.reward.plugin))->facts().rewards.empty())
    throw UserError::at("reward.plugin", "is {}, which has no rewards.", options.reward.plugin);
  const auto settle = [&](const std::string& file, const std::string& name_key, std::string& name) {
    if (file.empty()) return;
    try {
      settle_name(*libraries.at(file_id(file)), name);
    } catch (const UserError& error) {
      throw UserError("{} {}", name_key, error.what()).about(name_key);
    }
  };
  add_agents(options, datasets, all.environments);
  if (use == LibraryUse::kApart) require_agents(datasets);
  for (size_t i = 0; i < datasets.size(); ++i)
    settle(datasets[i].plugin, datasets[i].key("env"),
           datasets[i].listed ? options.datasets[i].env : options.env.name);
  add_programs(options, datasets, known,
               {.call = a_little_less(timeout),
                .start = seconds(options.rollout.start_timeout_s),
                .starts_at_once = starts_at_once(options.rollout)},
               all);
  all.verifiers = std::make_shared<const VerifierRegistry>(std::move(verifiers));
  replace_verifiers(options, all.environments, all.verifiers);
  return all;
}

void write_library_facts(const std::filesystem::path& file, const Registries& registries) {
  if (registries.libraries.empty() && registries.programs.empty()) return;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Library& library : registries.libraries) {
    const std::string name = library->file().string();
    nlohmann::ordered_json row = {{"file", name}};
    row.update(json_of(library->facts()));
    rows.push_back(std::move(row));
  }
  nlohmann::ordered_json programs = nlohmann::ordered_json::array();
  for (const auto& program : registries.programs) programs.push_back(program->facts());
  nlohmann::ordered_json facts = {{"libraries", std::move(rows)}};
  if (!programs.empty()) facts["programs"] = std::move(programs);
  if (auto done = write_file_atomic(file, to_proved_json(facts)); !done)
    throw UserError("{}", done.failure().message);
}

}  // namespace tailrace
