// A line of a JSONL file, which a person or another program has written.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace {

// Limits of a row. Far more than a row has that somebody trains on: four lists of a token each for
// a context of two million tokens.
inline constexpr int32_t kMaxRowDepth = 100;
inline constexpr int64_t kMaxRowKeys = 10'000, kMaxRowValues = 8'000'000;

// The object of a line, which is UTF-8, its keys in their order: chat templates write tools and the
// arguments of calls as they come. The work is proportional to the line (json_reader.h). A Failure
// says what the line is: "not valid JSON", "not a JSON object", "nested more than 100 deep"
// (whoever writes it again would run out of stack), "too wide: an object has more than 10000 keys"
// (each is looked for among all), "too large: it has more than 8000000 values", "ambiguous: it has
// "x" twice", of which no reader can know which one is meant, or "too precise": a whole number of
// more than 64 bits, of which a parser would change the digits.
Result<nlohmann::ordered_json> parse_json_row(std::string_view line,
                                              int64_t max_values = kMaxRowValues);

// The JSON of a field: where it is a text, that text, since tables keep JSON so. Empty: the row has
// no such field, or null.
std::string json_of_field(const nlohmann::ordered_json& row, std::string_view key);

}  // namespace tailrace
