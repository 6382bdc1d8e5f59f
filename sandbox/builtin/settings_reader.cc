#include "sandbox/builtin/settings_reader.h"

#include <algorithm>

#include "core/base/nearest.h"
#include "core/base/number.h"

namespace tailrace::sandbox {

SettingsReader::SettingsReader(std::string environment, const EnvironmentSettings& settings)
    : environment_(std::move(environment)), settings_(settings) {}

const std::string* SettingsReader::find(const std::string& key) {
  // Asking for a setting is what makes it known: the list in a message cannot lag behind the code.
  known_.push_back(key);
  for (const auto& [name, value] : settings_) {
    if (name == key) return &value;
  }
  return nullptr;
}

int64_t SettingsReader::integer(const std::string& key, int64_t fallback, int64_t min,
                                int64_t max) {
  const std::string* text = find(key);
  if (text == nullptr) return fallback;
  const auto value = parse_integer(*text);
  if (!value || *value < min || *value > max) {
    throw mistake(key, "{} is '{}'; it must be an integer from {} to {} (default {})", key, *text,
                  min, max, fallback);
  }
  return *value;
}

double SettingsReader::number(const std::string& key, double fallback, double min, double max) {
  const std::string* text = find(key);
  if (text == nullptr) return fallback;
  const auto value = parse_number(*text);
  if (!value || *value < min || *value > max) {
    throw mistake(key, "{} is '{}'; it must be a number from {} to {} (default {})", key, *text,
                  min, max, fallback);
  }
  return *value;
}

std::string SettingsReader::text(const std::string& key, const std::string& fallback) {
  const std::string* text = find(key);
  return text == nullptr ? fallback : *text;
}

std::string SettingsReader::choice(const std::string& key, const std::string& fallback,
                                   const std::vector<std::string>& allowed) {
  std::string value = text(key, fallback);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    throw mistake(key, "{} is '{}'; accepted: {}", key, value, fmt::join(allowed, ", "));
  }
  return value;
}

void SettingsReader::finish() const {
  for (const auto& [name, value] : settings_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    if (known_.empty()) throw mistake(name, "it has no settings, but '{}' is given", name);
    throw mistake(name, "there is no setting '{}'{} Settings: {}", name, did_you_mean(name, known_),
                  fmt::join(known_, ", "));
  }
}

}  // namespace tailrace::sandbox
