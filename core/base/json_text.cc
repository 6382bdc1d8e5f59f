#include "core/base/json_text.h"

#include <nlohmann/json.hpp>

namespace tailrace {

namespace {

template <class Json>
std::string write(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}
nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}
std::string json_text(const nlohmann::json& value, int indent) { return write(value, indent); }
std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return write(value, indent);
}

}  // namespace tailrace
