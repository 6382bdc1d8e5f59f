// The beginning of a text from outside, for messages that quote it.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// printable() of the text; of one that is longer than a name or a short line, its first characters
// and "...".
std::string excerpt(std::string_view text);

}  // namespace tailrace
