// Texts in a row, as messages list names. Formatting a range of them is a template that costs a
// fifth of a second in each unit that asks for it: here it is a plain loop, compiled once.
//
// Thread: any.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

namespace tailrace {

std::string join_texts(std::span<const std::string> texts, std::string_view separator);
std::string join_texts(std::span<const std::string_view> texts, std::string_view separator);
std::string join_texts(const std::set<std::string>& texts, std::string_view separator);

}  // namespace tailrace
