// Values from JSON, and JSON from values, spelled as Python's json.dumps() does.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

// Keys keep their order. Bytes that are not UTF-8 become U+FFFD. Throws Error for an integer that
// needs more than 64 bits and for deep nesting.
Value from_json(const nlohmann::ordered_json& json);

inline constexpr int64_t kMaxJsonIndent = 64;

struct JsonStyle {
  bool ascii_only = false;
  std::optional<std::string> indent;  // of one level; nullopt: all in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Throws Error for what JSON does not have: an undefined value, a function.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace tailrace::chat::jinja
