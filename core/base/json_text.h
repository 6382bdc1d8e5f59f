// JSON as text and back. The parser and the writer of the library are templates that cost a second
// in each file that names them: here they are compiled once.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tailrace {

// A value that is_discarded() where the text is not JSON, or passes the limits that JsonLimits
// begins with (json_reader.h). The second keeps the order of keys.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// `indent`: blanks for each level; -1: all on one line. What is not UTF-8 is replaced (U+FFFD).
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace tailrace
