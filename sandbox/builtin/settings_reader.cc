#include "sandbox/builtin/settings_reader.h"

#include <algorithm>

#include "core/base/number.h"
#include "kernels/base/check.h"

namespace tailrace::sandbox {

SettingsReader::SettingsReader(const std::string& environment, const SettingsSchema& schema,
                               const EnvironmentSettings& given)
    : owner_("environment " + environment),
      given_(given),
      whole_(complete_settings(schema, given, owner_, "env.settings")) {}

const std::string& SettingsReader::text(std::string_view key) const {
  const auto found = std::ranges::find(whole_, key, &EnvironmentSettings::value_type::first);
  TR_CHECK(found != whole_.end(), "{} declares no setting {}", owner_, key);
  return found->second;
}

int64_t SettingsReader::integer(std::string_view key) const {
  return parse_integer(text(key)).value();
}

double SettingsReader::number(std::string_view key) const {
  return parse_number(text(key)).value();
}

bool SettingsReader::has(std::string_view key) const {
  return std::ranges::find(given_, key, &EnvironmentSettings::value_type::first) != given_.end();
}

}  // namespace tailrace::sandbox
