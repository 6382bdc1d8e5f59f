#include "cli/env/list.h"

#include <chrono>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using nlohmann::ordered_json;
using sandbox::Setting;
using sandbox::SettingType;

void ask_for_info(EnvFacts& facts, const std::function<sandbox::EnvironmentInfo()>& ask) {
  try {
    facts.info = ask();
  } catch (const UserError& error) {
    // Some environments need settings before they can say anything. The list tells that instead.
    facts.why_no_info = error.what();
  }
}

bool has_range(const Setting& setting) {
  return setting.type == SettingType::kInteger || setting.type == SettingType::kNumber;
}
// Beyond what anybody means: the ends of the types, which stand for no bound.
bool is_bound(double end) { return std::abs(end) < 1e18; }

// "integer, 2 to 12".
std::string kind_text(const Setting& setting) {
  if (setting.type == SettingType::kChoice) return join_texts(setting.choices, " | ");
  std::string text(name_of(setting.type));
  if (!has_range(setting)) return text;
  if (is_bound(setting.min) && is_bound(setting.max))
    return text + fmt::format(", {:g} to {:g}", setting.min, setting.max);
  if (is_bound(setting.min)) return text + fmt::format(", >= {:g}", setting.min);
  if (is_bound(setting.max)) return text + fmt::format(", <= {:g}", setting.max);
  return text;
}

std::string settings_text(const sandbox::SettingsSchema& settings) {
  std::string text;
  for (const Setting& setting : settings)
    text += fmt::format("    {} ({}{}): {}\n", setting.name, kind_text(setting),
                        setting.fallback ? ", default " + *setting.fallback : ", required",
                        setting.help);
  return text;
}

std::string info_text(const sandbox::EnvironmentInfo& info) {
  return fmt::format("{} turn{}; {}; {}", info.max_turns, info.max_turns == 1 ? "" : "s",
                     info.needs_dataset ? "needs a dataset" : "needs no dataset",
                     info.verifier.empty() ? "scores itself" : "scored by " + info.verifier);
}

ordered_json setting_json(const Setting& setting) {
  ordered_json row = {{"name", setting.name}, {"type", name_of(setting.type)}};
  const auto number = [&](double end) {
    return setting.type == SettingType::kInteger ? ordered_json(static_cast<int64_t>(end))
                                                 : ordered_json(end);
  };
  if (has_range(setting) && is_bound(setting.min)) row["min"] = number(setting.min);
  if (has_range(setting) && is_bound(setting.max)) row["max"] = number(setting.max);
  if (setting.type == SettingType::kChoice) row["choices"] = setting.choices;
  row["default"] = setting.fallback ? ordered_json(*setting.fallback) : ordered_json(nullptr);
  row["help"] = setting.help;
  return row;
}

ordered_json facts_json(const EnvFacts& facts) {
  ordered_json row = {{"kind", facts.is_reward ? "reward" : "environment"},
                      {"name", facts.name},
                      {"help", facts.help},
                      {"library", facts.library}};
  if (facts.info) {
    row["max_turns"] = facts.info->max_turns;
    row["max_action_tokens"] = facts.info->max_action_tokens;
    row["needs_dataset"] = facts.info->needs_dataset;
    row["scored_by"] = facts.info->verifier.empty() ? "itself" : facts.info->verifier;
    row["stop_strings"] = facts.info->stop_strings;
  } else if (!facts.is_reward) {
    row["needs_settings"] = facts.why_no_info;
  }
  row["settings"] = ordered_json::array();
  for (const Setting& setting : facts.settings) row["settings"].push_back(setting_json(setting));
  return row;
}

}  // namespace

std::vector<EnvFacts> facts_of(const sandbox::EnvironmentRegistry& built_in) {
  std::vector<EnvFacts> all;
  for (const sandbox::Declaration& one : built_in.list()) {
    EnvFacts& facts =
        all.emplace_back(EnvFacts{.name = one.name, .help = one.help, .settings = one.settings});
    ask_for_info(facts, [&] { return built_in.make(one.name, {})->info(); });
  }
  return all;
}

std::vector<EnvFacts> facts_of(sandbox::UsedLibrary& library) {
  constexpr Time kPatience = std::chrono::seconds(30);
  std::vector<EnvFacts> all;
  const std::string file = library.file().string();
  const sandbox::LibraryFacts declared = library.facts();
  for (const sandbox::Declaration& entry : declared.environments) {
    EnvFacts& facts = all.emplace_back(EnvFacts{
        .name = entry.name, .help = entry.help, .library = file, .settings = entry.settings});
    ask_for_info(facts, [&] {
      return library.info(
          entry.name,
          sandbox::complete_settings(entry.settings, {}, "environment " + entry.name, "settings"),
          kPatience);
    });
  }
  for (const sandbox::Declaration& entry : declared.rewards)
    all.push_back(EnvFacts{.name = entry.name,
                           .help = entry.help,
                           .library = file,
                           .is_reward = true,
                           .settings = entry.settings});
  return all;
}

std::string env_facts_text(const std::vector<EnvFacts>& facts) {
  std::string text;
  for (const EnvFacts& one : facts) {
    text += fmt::format("{}{}: {}{}\n", one.name, one.is_reward ? " (reward)" : "", one.help,
                        one.library.empty() ? "" : fmt::format(" [{}]", one.library));
    if (one.info) text += fmt::format("    {}\n", info_text(*one.info));
    if (!one.why_no_info.empty()) text += fmt::format("    needs settings: {}\n", one.why_no_info);
    text += settings_text(one.settings);
  }
  // The text comes from a library: nothing in it may act on the terminal.
  return printable(text);
}

std::string env_facts_json(const std::vector<EnvFacts>& facts) {
  ordered_json rows = ordered_json::array();
  for (const EnvFacts& one : facts) rows.push_back(facts_json(one));
  return json_text(rows) + "\n";
}

}  // namespace tailrace
