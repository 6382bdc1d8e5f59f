#include "core/base/json_keys.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace {

std::string duplicate_key(std::string_view json) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  const Json parsed = Json::parse(json, watch, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? std::string() : duplicate;
}

}  // namespace tailrace
