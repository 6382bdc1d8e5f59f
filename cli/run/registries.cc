#include "cli/run/registries.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/run/datasets.h"
#include "core/base/digest.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/nearest.h"
#include "reward/plugin/hosted_verifier.h"
#include "reward/plugin/plugin_verifier.h"
#include "sandbox/plugin/hosted_environment.h"

namespace tailrace {
namespace {

using sandbox::EnvironmentSettings;
using sandbox::LibraryEntry;
using sandbox::UsedLibrary;
using Library = std::shared_ptr<UsedLibrary>;

std::vector<std::string> names_of(const std::vector<LibraryEntry>& entries) {
  std::vector<std::string> names;
  for (const LibraryEntry& entry : entries) names.push_back(entry.name);
  return names;
}

// What a launch has written: a library's facts by its file.
using KnownFacts = std::map<std::string, sandbox::LibraryFacts>;

KnownFacts read_library_facts(const std::filesystem::path& file) {
  KnownFacts known;
  if (file.empty() || !std::filesystem::exists(file)) return known;
  const nlohmann::json said = read_proved_json(file);
  for (const auto& library : said.at("libraries"))
    known[library.at("file").get<std::string>()] = sandbox::facts_of_json(library);
  return known;
}

Library open_library(const std::string& file, Isolation isolation, LibraryUse use,
                     const KnownFacts& known) {
  if (use == LibraryUse::kHere) return UsedLibrary::load(file);
  const bool is_apart = use == LibraryUse::kApart || isolation == Isolation::kProcess;
  if (const auto found = known.find(file); found != known.end())
    return UsedLibrary::known(file, is_apart, found->second);
  return UsedLibrary::ask(file, is_apart);
}

// Each call of an episode ends a little before who plays it gives it up, and says why.
void add_environments(const Library& library, Time timeout,
                      sandbox::EnvironmentRegistry& environments) {
  for (const LibraryEntry& entry : library->facts().environments)
    environments.add(entry.name, entry.help,
                     sandbox::EnvironmentRegistry::Sources(
                         [library, name = entry.name, timeout](const EnvironmentSettings& given) {
                           return source_of(library, name, given, a_little_less(timeout));
                         }));
}

void add_rewards(const Library& library, const EnvironmentSettings& settings, bool proves,
                 VerifierRegistry& verifiers) {
  for (const LibraryEntry& entry : library->facts().rewards) {
    const EnvironmentSettings whole =
        complete_settings(entry.settings, settings, "reward " + entry.name, "reward.settings");
    // Now, so that settings that it refuses end the start and no score.
    if (proves) prove_reward(*library->hosted(), entry.name, whole, kScoreBudget);
    verifiers.add(entry.name, entry.help,
                  library->is_apart() ? make_hosted_verifier(library, entry.name, whole)
                                      : make_plugin_verifier(library, entry.name, whole));
  }
}

// The name of an environment of `library`: the one that is given, or the only one.
void settle_name(const Library& library, std::string& name) {
  const std::vector<std::string> names = names_of(library->facts().environments);
  const std::string file = library->file().string();
  if (names.empty()) throw UserError("has no use: {} has no environments", file);
  if (name.empty() && names.size() == 1) name = names.front();
  if (name.empty())
    throw UserError("is missing: {} has the environments {}", file, fmt::join(names, ", "));
  if (std::ranges::find(names, name) == names.end())
    throw UserError("is '{}', which {} does not have{} It has {}.", name, file,
                    did_you_mean(name, names), fmt::join(names, ", "));
}

}  // namespace

Registries with_libraries(const Registries& built_in, RunOptions& options, LibraryUse use,
                          const std::filesystem::path& file_of_known) {
  Registries all = built_in;
  // A launch asks anew: what it finds is what its run will have.
  const KnownFacts known =
      use == LibraryUse::kOfRun ? read_library_facts(file_of_known) : KnownFacts();
  VerifierRegistry verifiers = *built_in.verifiers;
  const auto step_timeout = std::chrono::duration_cast<Time>(
      std::chrono::duration<double>(options.rollout.step_timeout_s));
  std::map<std::pair<std::string, Isolation>, Library> loaded;
  const auto add = [&](const std::string& key, const std::string& file, Isolation isolation,
                       const EnvironmentSettings& reward_settings) -> const Library& {
    try {
      const auto [at, is_new] = loaded.try_emplace({file, isolation});
      if (is_new) {
        at->second = open_library(file, isolation, use, known);
        all.libraries.push_back(at->second);
        add_environments(at->second, step_timeout, all.environments);
        add_rewards(at->second, reward_settings, use == LibraryUse::kApart, verifiers);
      }
      return at->second;
    } catch (const UserError& error) {
      throw error.about(key);
    }
  };
  // First: it has settings for its rewards.
  const RewardSection& reward = options.reward;
  if (!reward.plugin.empty()) {
    if (add("reward.plugin", reward.plugin, reward.isolation, reward.settings)
            ->facts()
            .rewards.empty())
      throw UserError::at("reward.plugin", "is {}, which has no rewards.", reward.plugin);
  } else if (!reward.settings.empty()) {
    throw UserError::at("reward.settings", "has no effect without reward.plugin. Remove it.");
  }
  const auto settle = [&](const std::string& key, const std::string& name_key,
                          const std::string& file, Isolation isolation, std::string& name) {
    if (file.empty()) return;
    const Library& library = add(key, file, isolation, {});
    try {
      settle_name(library, name);
    } catch (const UserError& error) {
      throw UserError("{} {}", name_key, error.what()).about(name_key);
    }
  };
  if (options.datasets.empty()) {
    EnvSection& env = options.env;
    settle("env.plugin", "env.name", env.plugin, env.isolation, env.name);
  } else {
    for (size_t i = 0; i < options.datasets.size(); ++i) {
      DatasetSection& dataset = options.datasets[i];
      settle(dataset_key(options, i, "plugin"), dataset_key(options, i, "env"), dataset.plugin,
             dataset.isolation, dataset.env);
    }
  }
  all.verifiers = std::make_shared<const VerifierRegistry>(std::move(verifiers));
  return all;
}

void write_library_facts(const std::filesystem::path& file, const Registries& registries) {
  if (registries.libraries.empty()) return;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::set<std::string> written;  // one that plays here and there is asked twice
  for (const Library& library : registries.libraries) {
    const std::string name = library->file().string();
    if (!written.insert(name).second) continue;
    const Result<Digest> digest = digest_of_file(library->file());
    if (!digest) throw UserError("{}", digest.failure().message);
    nlohmann::ordered_json row = {{"file", name}, {"digest", digest.value()}};
    row.update(json_of(library->facts()));
    rows.push_back(std::move(row));
  }
  if (auto done = write_file_atomic(file, to_proved_json({{"libraries", std::move(rows)}})); !done)
    throw UserError("{}", done.failure().message);
}

}  // namespace tailrace
