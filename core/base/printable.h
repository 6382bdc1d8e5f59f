// Text from outside (a worker, a program, a file) made safe to be shown.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace {

// For messages on a terminal and in logs: control characters, except newlines, and bytes that are
// not UTF-8 become "\x1b", so that nothing of an input can act. A NUL byte becomes "\x00": as it
// is, it would end the message of an exception.
std::string printable(std::string_view text);

// The first bytes of a text that a message quotes, at most `max_bytes`, with "..." behind them
// where more follows. No character is cut.
std::string shortened(std::string_view text, size_t max_bytes);
// printable() of the first 100 bytes: of a name, or of what stands in the place of one.
std::string shown_name(std::string_view text);

}  // namespace tailrace
