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
#include "core/base/error.h"
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

// The error of an owner that cannot be made of `whole`, which complete_settings() gave. A reason
// that begins with the name of a setting, and a blank or a colon, is about its key.
UserError refused_settings(const EnvironmentSettings& whole, std::string_view owner,
                           std::string_view section, std::string_view reason);

}  // namespace tailrace::sandbox
