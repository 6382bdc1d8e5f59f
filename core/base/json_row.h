// A line of a JSONL file, which a person or another program has written.
//
// Thread: any.
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace {

// The object of a line, which is UTF-8. A Failure says what the line is: "not valid JSON", "not a
// JSON object", "nested more than 100 deep" (whoever writes it again would run out of stack), or
// "ambiguous: it has "x" twice", of which no reader can know which one is meant.
Result<nlohmann::json> parse_json_row(std::string_view line);

}  // namespace tailrace
