// Reads an environment's own settings (strings from the YAML) by its schema.
//
//   const SettingsReader reader("countdown", countdown_settings(), settings);
//   max_number_ = reader.integer("max_number");
//
// All calls throw UserError about the key of the setting; a key that the schema lacks is a mistake
// of ours. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sandbox/environment.h"
#include "sandbox/settings_schema.h"

namespace tailrace::sandbox {

class SettingsReader {
 public:
  SettingsReader(const std::string& environment, const SettingsSchema& schema,
                 const EnvironmentSettings& given);

  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  // It was given, with whatever value.
  bool has(std::string_view key) const;

  // What is wrong with a setting, for rules of the environment's own.
  template <class... Args>
  UserError mistake(std::string_view key, fmt::format_string<Args...> format,
                    Args&&... args) const {
    return UserError("{}: {}", owner_, fmt::format(format, std::forward<Args>(args)...))
        .about(fmt::format("env.settings.{}", key));
  }

 private:
  const std::string owner_;
  const EnvironmentSettings given_, whole_;
};

}  // namespace tailrace::sandbox
