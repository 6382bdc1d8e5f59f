#include "sandbox/settings_schema.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/base/number.h"

namespace tailrace::sandbox {
namespace {

// "a number from 0 to 1", or that of an end that is not there.
std::string range_text(const Setting& setting, const char* what) {
  constexpr double kFar = 1e18;  // beyond what anybody means
  const auto end = [&](double value) {
    return setting.type == SettingType::kInteger ? fmt::format("{:.0f}", value)
                                                 : fmt::format("{:g}", value);
  };
  std::string text = what;
  if (setting.min > -kFar) text += " from " + end(setting.min);
  if (setting.max < kFar) text += (setting.min > -kFar ? " to " : " up to ") + end(setting.max);
  return text;
}

// The requirement that `value` fails; none: it meets all.
std::optional<std::string> misfit(const Setting& setting, const std::string& value) {
  const auto outside = [&](double number) { return number < setting.min || number > setting.max; };
  switch (setting.type) {
    case SettingType::kInteger: {
      const auto number = parse_integer(value);
      if (number && !outside(static_cast<double>(*number))) return std::nullopt;
      return range_text(setting, "an integer");
    }
    case SettingType::kNumber: {
      const auto number = parse_number(value);
      if (number && !outside(*number)) return std::nullopt;
      return range_text(setting, "a number");
    }
    case SettingType::kBool:
      if (parse_boolean(value)) return std::nullopt;
      return "true or false";
    case SettingType::kString:
      return std::nullopt;
    case SettingType::kChoice:
      if (std::ranges::find(setting.choices, value) != setting.choices.end()) return std::nullopt;
      return fmt::format("one of {}", join_texts(setting.choices, ", "));
  }
  return std::nullopt;
}

}  // namespace

EnvironmentSettings complete_settings(const SettingsSchema& schema,
                                      const EnvironmentSettings& given, std::string_view owner,
                                      std::string_view section) {
  const auto about = [&](std::string_view name, std::string_view words) {
    return UserError("{}: {}", owner, words).about(fmt::format("{}.{}", section, name));
  };
  std::vector<std::string> names;
  for (const Setting& setting : schema) names.push_back(setting.name);
  for (const auto& [name, value] : given) {
    if (std::ranges::find(names, name) != names.end()) continue;
    if (names.empty())
      throw about(name, fmt::format("it has no settings, but '{}' is given", name));
    throw about(name, fmt::format("there is no setting '{}'{} Settings: {}", name,
                                  did_you_mean(name, names), join_texts(names, ", ")));
  }
  EnvironmentSettings whole;
  for (const Setting& setting : schema) {
    const auto found =
        std::ranges::find(given, setting.name, &EnvironmentSettings::value_type::first);
    if (found == given.end() && !setting.fallback)
      throw about(setting.name, fmt::format("{} is missing ({})", setting.name, setting.help));
    const std::string& value = found == given.end() ? *setting.fallback : found->second;
    if (const auto must = misfit(setting, value))
      throw about(setting.name,
                  fmt::format("{} is '{}'; it must be {}{}", setting.name, value, *must,
                              setting.fallback ? fmt::format(" (default {})", *setting.fallback)
                                               : std::string()));
    // An environment knows one spelling.
    const auto truth =
        setting.type == SettingType::kBool ? parse_boolean(value) : std::optional<bool>();
    whole.emplace_back(setting.name, truth ? std::string(*truth ? "true" : "false") : value);
  }
  return whole;
}

UserError refused_settings(const EnvironmentSettings& whole, std::string_view owner,
                           std::string_view section, std::string_view reason) {
  const UserError error("{}: {}", owner, reason);
  for (const auto& [name, value] : whole)
    if (reason.starts_with(name + " ") || reason.starts_with(name + ":"))
      return error.about(fmt::format("{}.{}", section, name));
  return error;
}

}  // namespace tailrace::sandbox
