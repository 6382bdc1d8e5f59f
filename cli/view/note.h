// A note for a person, as a terminal shows it.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// "note: ..." with its newline. What goes beyond 100 columns stands on lines of its own below,
// under the first word; only a word that is longer by itself goes beyond.
std::string note_lines(std::string_view note);

}  // namespace tailrace
