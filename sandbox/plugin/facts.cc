#include "sandbox/plugin/facts.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace tailrace::sandbox {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json json_of(const std::vector<Declaration>& entries) {
  ordered_json rows = ordered_json::array();
  for (const Declaration& entry : entries) {
    ordered_json settings = ordered_json::array();
    for (const Setting& setting : entry.settings)
      settings.push_back(
          {{"name", setting.name},
           {"type", name_of(setting.type)},
           {"default", setting.fallback ? ordered_json(*setting.fallback) : ordered_json(nullptr)},
           {"min", setting.min},
           {"max", setting.max},
           {"choices", setting.choices},
           {"help", setting.help}});
    rows.push_back({{"name", entry.name}, {"help", entry.help}, {"settings", settings}});
  }
  return rows;
}

std::vector<Declaration> entries_of_json(const json& rows) {
  std::vector<Declaration> entries;
  for (const json& row : rows) {
    Declaration& entry = entries.emplace_back();
    row.at("name").get_to(entry.name);
    row.at("help").get_to(entry.help);
    for (const json& one : row.at("settings")) {
      Setting& setting = entry.settings.emplace_back();
      one.at("name").get_to(setting.name);
      one.at("help").get_to(setting.help);
      const auto type = value_of<SettingType>(one.at("type").get<std::string>());
      if (!type) throw UserError("a setting is of the type {}", one.at("type").get<std::string>());
      setting.type = *type;
      if (!one.at("default").is_null()) setting.fallback = one.at("default").get<std::string>();
      one.at("min").get_to(setting.min);
      one.at("max").get_to(setting.max);
      one.at("choices").get_to(setting.choices);
    }
  }
  return entries;
}

ordered_json json_of(const KnownInfo& known) {
  const EnvironmentInfo& info = known.info;
  return {{"name", known.name},
          {"settings", known.settings},
          {"info",
           {{"vocabulary", info.vocabulary},
            {"stop_strings", info.stop_strings},
            {"max_turns", info.max_turns},
            {"max_action_tokens", info.max_action_tokens},
            {"needs_dataset", info.needs_dataset},
            {"reward", info.verifier}}}};
}

KnownInfo known_of_json(const json& row) {
  KnownInfo known;
  row.at("name").get_to(known.name);
  row.at("settings").get_to(known.settings);
  const json& said = row.at("info");
  EnvironmentInfo& info = known.info;
  info.name = known.name;
  said.at("vocabulary").get_to(info.vocabulary);
  said.at("stop_strings").get_to(info.stop_strings);
  said.at("max_turns").get_to(info.max_turns);
  said.at("max_action_tokens").get_to(info.max_action_tokens);
  said.at("needs_dataset").get_to(info.needs_dataset);
  said.at("reward").get_to(info.verifier);
  return known;
}

}  // namespace

void pack(Packer& packer, const std::vector<Declaration>& entries) {
  packer.number<uint64_t>(entries.size());
  for (const Declaration& entry : entries) {
    packer.text(entry.name).text(entry.help).number<uint64_t>(entry.settings.size());
    for (const Setting& setting : entry.settings) {
      packer.text(setting.name).text(setting.help).number(static_cast<uint8_t>(setting.type));
      packer.number(setting.fallback.has_value()).text(setting.fallback.value_or(""));
      packer.number(setting.min).number(setting.max).number<uint64_t>(setting.choices.size());
      for (const std::string& choice : setting.choices) packer.text(choice);
    }
  }
}

std::vector<Declaration> unpack_entries(Unpacker& said) {
  std::vector<Declaration> entries;
  for (uint64_t left = said.count(); left > 0 && said.ok(); --left) {
    Declaration& entry = entries.emplace_back();
    entry.name = said.text();
    entry.help = said.text();
    for (uint64_t more = said.count(); more > 0 && said.ok(); --more) {
      Setting& setting = entry.settings.emplace_back();
      setting.name = said.text();
      setting.help = said.text();
      setting.type = static_cast<SettingType>(said.number<uint8_t>());
      const bool has_fallback = said.number<bool>();
      std::string fallback = said.text();
      if (has_fallback) setting.fallback = std::move(fallback);
      setting.min = said.number<double>();
      setting.max = said.number<double>();
      for (uint64_t choices = said.count(); choices > 0 && said.ok(); --choices)
        setting.choices.push_back(said.text());
    }
  }
  return entries;
}

ordered_json json_of(const LibraryFacts& facts) {
  ordered_json infos = ordered_json::array();
  for (const KnownInfo& known : facts.infos) infos.push_back(json_of(known));
  return {{"digest", facts.digest},
          {"environments", json_of(facts.environments)},
          {"rewards", json_of(facts.rewards)},
          {"used", std::move(infos)}};
}

LibraryFacts facts_of_json(const json& said) {
  LibraryFacts facts{.digest = said.at("digest").get<std::string>(),
                     .environments = entries_of_json(said.at("environments")),
                     .rewards = entries_of_json(said.at("rewards")),
                     .infos = {}};
  for (const json& row : said.at("used")) facts.infos.push_back(known_of_json(row));
  return facts;
}

}  // namespace tailrace::sandbox
