#include "core/base/json_keys.h"

#include <nlohmann/json.hpp>

#include "core/base/json_reader.h"

namespace tailrace {

std::string duplicate_key(std::string_view json) {
  const auto reading =
      read_json(json, {.max_values = kMaxFileValues, .refuses_doubled_keys = true});
  if (!reading.fault || reading.fault->kind != JsonFault::Kind::kDouble) return "";
  return reading.fault->key;
}

}  // namespace tailrace
