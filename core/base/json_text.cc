#include "core/base/json_text.h"

#include <nlohmann/json.hpp>

#include "core/base/json_reader.h"

namespace tailrace {

namespace {

template <class Json>
std::string write(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  return read_json(text, {}).value;
}
nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return read_ordered_json(text, {}).value;
}
std::string json_text(const nlohmann::json& value, int indent) { return write(value, indent); }
std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return write(value, indent);
}

}  // namespace tailrace
