// Text from outside (a worker, a program, a file) made safe to be shown.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// For messages on a terminal and in logs: control characters, except newlines, and bytes that are
// not UTF-8 become "\x1b", so that nothing of an input can act. A NUL byte becomes "\x00": as it
// is, it would end the message of an exception.
std::string printable(std::string_view text);

}  // namespace tailrace
