// GPT-2's printable stand-ins for the 256 bytes: `!`..`~`, U+00A1..U+00AC and U+00AE..U+00FF stand
// for themselves, the other 68 bytes are U+0100, U+0101, ... in order (a blank is U+0120).
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tailrace::text {

// UTF-8 of the character for `byte`.
std::string_view byte_character(uint8_t byte);
std::optional<uint8_t> byte_of_character(char32_t character);

}  // namespace tailrace::text
