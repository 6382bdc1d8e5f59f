// UTF-8: checking, repairing, walking.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace::text {

// Where the first byte stands that is no part of UTF-8; npos when all of it is.
size_t first_non_utf8(std::string_view text);
bool is_utf8(std::string_view text);

// Each maximal part of a broken sequence becomes one U+FFFD (the Unicode standard's practice, and
// what Rust's from_utf8_lossy and Python's errors="replace" do).
std::string repair_utf8(std::string_view text);

// The code point that starts at `at`, which moves past it. `text` must be UTF-8.
char32_t next_code_point(std::string_view text, size_t& at);

// Start of the last code point of `text`, which must be UTF-8 and not empty.
size_t last_code_point(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// Unicode White_Space.
bool is_white_space(char32_t code_point);

}  // namespace tailrace::text
