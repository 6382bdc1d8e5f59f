// Numbers and booleans as a person writes them. A number is whole and finite: "4", "+4", "-1e-3".
// Not: "4k", "0x10", " 4", "inf", "nan", or what does not fit the type.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tailrace {

std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);  // decimal; "010" is 10

// The booleans of YAML 1.2: true, True and TRUE, and the same of false.
std::optional<bool> parse_boolean(std::string_view text);

}  // namespace tailrace
