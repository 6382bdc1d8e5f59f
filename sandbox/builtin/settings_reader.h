// Reads an environment's own settings (strings from the YAML) with types, ranges and defaults.
//
//   SettingsReader reader("countdown", settings);
//   max_number_ = reader.integer("max_number", 25, 1, 99);
//   reader.finish();  // refuses what nobody asked for
//
// All calls throw UserError about the key of the setting. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sandbox/environment.h"

namespace tailrace::sandbox {

class SettingsReader {
 public:
  SettingsReader(std::string environment, const EnvironmentSettings& settings);

  int64_t integer(const std::string& key, int64_t fallback, int64_t min, int64_t max);
  double number(const std::string& key, double fallback, double min, double max);
  std::string text(const std::string& key, const std::string& fallback);
  std::string choice(const std::string& key, const std::string& fallback,
                     const std::vector<std::string>& allowed);
  // It was given, with whatever value.
  bool has(const std::string& key) { return find(key) != nullptr; }
  void finish() const;

  // What is wrong with a setting, for rules of the environment's own.
  template <class... Args>
  UserError mistake(std::string_view key, fmt::format_string<Args...> format,
                    Args&&... args) const {
    return UserError("environment {}: {}", environment_,
                     fmt::format(format, std::forward<Args>(args)...))
        .about(fmt::format("env.settings.{}", key));
  }

 private:
  const std::string* find(const std::string& key);
  std::string environment_;
  EnvironmentSettings settings_;
  std::vector<std::string> known_;
};

}  // namespace tailrace::sandbox
