#include "core/model/config_reader.h"

#include <limits>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"

namespace tailrace {

namespace {

using Json = nlohmann::json;

}  // namespace

const Json* ConfigReader::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::is_null(const char* key) const {
  return json_.contains(key) && json_[key].is_null();
}

int64_t ConfigReader::integer(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) throw UserError("{}: {} is missing; it must be a whole number", path_, key);
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() &&
       value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    throw UserError("{}: {} is {}; it must be a whole number", path_, key, json_text(*value));
  }
  return value->get<int64_t>();
}

int64_t ConfigReader::integer(const char* key, int64_t fallback) const {
  return find(key) == nullptr ? fallback : integer(key);
}

double ConfigReader::number(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) throw UserError("{}: {} is missing; it must be a number", path_, key);
  if (!value->is_number())
    throw UserError("{}: {} is {}; it must be a number", path_, key, json_text(*value));
  return value->get<double>();
}

double ConfigReader::number(const char* key, double fallback) const {
  return find(key) == nullptr ? fallback : number(key);
}

bool ConfigReader::boolean(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean())
    throw UserError("{}: {} is {}; it must be true or false", path_, key, json_text(*value));
  return value->get<bool>();
}

std::vector<int64_t> ConfigReader::tokens(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_integer())
      throw UserError("{}: {} is {}; it must be a token id", path_, key, json_text(id));
    // Some configs write -1 for "no such token".
    if (id != -1) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

ConfigReader ConfigReader::inner(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_object())
    throw UserError("{}: {} is {}; it must be an object", path_, key,
                    value == nullptr ? "missing" : json_text(*value));
  return {path_ + ": " + key, *value};
}

void ConfigReader::check(const ConfigFeature& feature) const {
  const Json* value = find(feature.key);
  if (value == nullptr) return;
  const Json accepted = parse_json(feature.accepted);
  std::vector<std::string> names;
  for (const Json& known : accepted) {
    if (*value == known) return;
    names.push_back(json_text(known));
  }
  throw UserError("{}: {} is {}, which is not supported; accepted: {}", path_, feature.key,
                  json_text(*value), names.empty() ? "null" : join_texts(names, ", "));
}

}  // namespace tailrace
