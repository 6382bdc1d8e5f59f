// Numbers as a person writes them, whole and finite or not at all: "4", "+4", "-1e-3". Not: "4k",
// "0x10", " 4", "inf", "nan", or what does not fit the type.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tailrace {

std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);  // decimal; "010" is 10

}  // namespace tailrace
