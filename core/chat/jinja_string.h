// Python's methods of text that Jinja templates use, on UTF-8.
//
// Letters change their case in ASCII. A text with other letters that may have a case is refused
// (Error): a wrong letter would be silent.
//
// Thread: any. All texts must be UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja_budget.h"

namespace tailrace::chat::jinja {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }  // ASCII only
// str.isspace(): Unicode White_Space and U+001C to U+001F.
bool is_python_space(char32_t c);

int64_t num_code_points(std::string_view text);
std::u32string to_code_points(std::string_view text);
std::string from_code_points(std::u32string_view code_points);

enum class Side { kLeft, kRight, kBoth };
// Removes the characters of `chars` at the ends; nullopt: white space.
std::string_view strip(std::string_view text, std::optional<std::string_view> chars, Side side);

// By `separator` (not empty), or by runs of white space; at most `max_splits` times, from the left
// or from the right; below 0: without end.
std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max_splits, Side from, Budget& budget);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends, Budget& budget);

// At most `count` times; below 0: all. An empty `from` stands between all characters.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);

std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);
std::string capitalized(std::string_view text);  // str.capitalize()
std::string title_case(std::string_view text);   // str.title()

std::string python_repr(std::string_view text);  // repr()

}  // namespace tailrace::chat::jinja
