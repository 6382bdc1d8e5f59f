// Text in lines of at most 100 columns, for terminals and for pages.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// `label` and the text, with its last newline. Lines break at spaces, and those after the first
// stand under its first word; only a word that is longer by itself goes beyond.
std::string wrapped(std::string_view text, std::string_view label = "");

}  // namespace tailrace
