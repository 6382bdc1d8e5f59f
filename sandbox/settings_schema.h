// The settings of an environment or a reward as data: what a person may write, checked before
// anything is made of it.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "sandbox/environment.h"

namespace tailrace::sandbox {

enum class SettingType : uint8_t { kInteger, kNumber, kBool, kString, kChoice };
constexpr auto enum_names(SettingType) {
  return name_table<SettingType>({{SettingType::kInteger, "integer"},
                                  {SettingType::kNumber, "number"},
                                  {SettingType::kBool, "bool"},
                                  {SettingType::kString, "string"},
                                  {SettingType::kChoice, "choice"}});
}

struct Setting {
  std::string name, help = {};
  SettingType type = SettingType::kString;
  std::optional<std::string> fallback = {};  // none: it must be given
  double min = 0, max = 0;                   // of integers and numbers, both included
  std::vector<std::string> choices = {};
};

using SettingsSchema = std::vector<Setting>;

Setting integer_setting(std::string name, std::string help, int64_t fallback, int64_t min,
                        int64_t max);
Setting number_setting(std::string name, std::string help, double fallback, double min, double max);
Setting text_setting(std::string name, std::string help, std::string fallback);
// The first one is the fallback.
Setting choice_setting(std::string name, std::string help, std::vector<std::string> choices);

// An environment or a reward that a config can name, and what may be set of it.
struct Declaration {
  std::string name, help;
  SettingsSchema settings;
};

// Every setting of the schema in its order, with the value that is given or its fallback. Throws
// UserError about `section`.NAME: a name that is not known (with the nearest), a value that does
// not fit, one that is missing. `owner` begins the message: "environment maze".
EnvironmentSettings complete_settings(const SettingsSchema& schema,
                                      const EnvironmentSettings& given, std::string_view owner,
                                      std::string_view section);

}  // namespace tailrace::sandbox
