#include "cli/run/registries.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "cli/run/datasets.h"
#include "core/base/error.h"
#include "core/base/nearest.h"
#include "reward/plugin/hosted_verifier.h"
#include "reward/plugin/plugin_verifier.h"
#include "sandbox/plugin/hosted_library.h"
#include "sandbox/plugin/library.h"
#include "sandbox/plugin/plugin_environment.h"

namespace tailrace {
namespace {

using sandbox::EnvironmentSettings;
using sandbox::HostedLibrary;
using sandbox::PluginLibrary;

// A library that is loaded, here or in a process of its own.
struct Library {
  std::string file;
  std::shared_ptr<const PluginLibrary> here;
  std::shared_ptr<HostedLibrary> hosted;  // one of the two

  std::vector<std::string> environments() const {
    return here ? names_of(here->environments()) : names_of(hosted->environments());
  }
  std::vector<std::string> rewards() const {
    return here ? names_of(here->rewards()) : names_of(hosted->rewards());
  }

 private:
  template <class Entry>
  static std::vector<std::string> names_of(const std::vector<Entry>& entries) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) names.push_back(entry.name);
    return names;
  }
};

Library load_library(const std::string& file, Isolation isolation) {
  if (isolation == Isolation::kNone) return {file, PluginLibrary::load(file), nullptr};
  return {file, nullptr, HostedLibrary::start(file)};
}

template <class Entry, class Make>
void add_environments(const std::vector<Entry>& entries, const Make& make,
                      sandbox::EnvironmentRegistry& environments) {
  for (const Entry& entry : entries) {
    environments.add(entry.name, entry.help, [&entry, make](const EnvironmentSettings& settings) {
      return make(entry, complete_settings(entry.settings, settings, "environment " + entry.name,
                                           "env.settings"));
    });
  }
}

// Each episode in a process of its own ends a little before who plays it gives it up, and says why.
void add_environments(const Library& library, Time timeout,
                      sandbox::EnvironmentRegistry& environments) {
  if (library.here) {
    add_environments(
        library.here->environments(),
        [here = library.here](const auto& entry, const EnvironmentSettings& settings) {
          return make_plugin_environment(here, entry, settings);
        },
        environments);
  } else {
    add_environments(
        library.hosted->environments(),
        [hosted = library.hosted, timeout](const auto& entry, const EnvironmentSettings& settings) {
          return make_hosted_environment(hosted, entry.name, settings, a_little_less(timeout));
        },
        environments);
  }
}

void add_rewards(const Library& library, const EnvironmentSettings& settings,
                 VerifierRegistry& verifiers) {
  const auto whole = [&](const auto& entry) {
    return complete_settings(entry.settings, settings, "reward " + entry.name, "reward.settings");
  };
  if (library.here) {
    for (const auto& entry : library.here->rewards())
      verifiers.add(entry.name, entry.help,
                    make_plugin_verifier(library.here, entry, whole(entry)));
  } else {
    for (const auto& entry : library.hosted->rewards())
      verifiers.add(entry.name, entry.help,
                    make_hosted_verifier(library.hosted, entry.name, whole(entry)));
  }
}

// The name of an environment of `library`: the one that is given, or the only one.
void settle_name(const Library& library, std::string& name) {
  const std::vector<std::string> names = library.environments();
  if (names.empty()) throw UserError("has no use: {} has no environments", library.file);
  if (name.empty() && names.size() == 1) name = names.front();
  if (name.empty())
    throw UserError("is missing: {} has the environments {}", library.file, fmt::join(names, ", "));
  if (std::ranges::find(names, name) == names.end())
    throw UserError("is '{}', which {} does not have{} It has {}.", name, library.file,
                    did_you_mean(name, names), fmt::join(names, ", "));
}

}  // namespace

Registries with_libraries(const Registries& built_in, RunOptions& options) {
  Registries all = built_in;
  VerifierRegistry verifiers = *built_in.verifiers;
  const auto step_timeout = std::chrono::duration_cast<Time>(
      std::chrono::duration<double>(options.rollout.step_timeout_s));
  std::map<std::pair<std::string, Isolation>, Library> loaded;
  const auto add = [&](const std::string& key, const std::string& file, Isolation isolation,
                       const EnvironmentSettings& reward_settings) -> const Library& {
    try {
      const auto [at, is_new] = loaded.try_emplace({file, isolation});
      if (is_new) {
        at->second = load_library(file, isolation);
        add_environments(at->second, step_timeout, all.environments);
        add_rewards(at->second, reward_settings, verifiers);
      }
      return at->second;
    } catch (const UserError& error) {
      throw error.about(key);
    }
  };
  // First: it has settings for its rewards.
  const RewardSection& reward = options.reward;
  if (!reward.plugin.empty()) {
    if (add("reward.plugin", reward.plugin, reward.isolation, reward.settings).rewards().empty())
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

}  // namespace tailrace
