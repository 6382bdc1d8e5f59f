#include "core/text/json_part.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"

namespace tailrace::text {

namespace {

std::string short_json(const nlohmann::json& value) {
  // dump() throws for text that is not UTF-8, and a complaint must not fail while it is made.
  std::string text = json_text(value);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  return text;
}

}  // namespace

bool JsonPart::has(const std::string& key) const {
  if (!value_->is_object()) return false;
  auto it = value_->find(key);
  // Hugging Face writes null for what is not set.
  return it != value_->end() && !it->is_null();
}

JsonPart JsonPart::at(const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  auto it = value_->find(key);
  if (it == value_->end())
    // The root's place ends in ": ", behind which neither a blank nor a dot is wanted.
    throw UserError("{}{}has no \"{}\"", where_, where_.ends_with(' ') ? "" : " ", key);
  return JsonPart(*it, where_ + (where_.ends_with(": ") ? "" : ".") + key);
}

std::vector<JsonPart> JsonPart::items() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonPart> parts;
  parts.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    parts.emplace_back((*value_)[i], fmt::format("{}[{}]", where_, i));
  }
  return parts;
}

std::string JsonPart::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

int64_t JsonPart::integer() const {
  if (!value_->is_number_integer()) refuse("an integer");
  return value_->get<int64_t>();
}

bool JsonPart::flag() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string JsonPart::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? at(key).text() : fallback;
}

bool JsonPart::flag(const std::string& key, bool fallback) const {
  return has(key) ? at(key).flag() : fallback;
}

void JsonPart::refuse(std::string_view accepted) const {
  throw UserError("{} is {}; accepted: {}", where_, short_json(*value_), accepted);
}

}  // namespace tailrace::text
