// The sequences of UTF-8, for those who walk over bytes (core/text/utf8.h, printable.h).
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace tailrace {

// Length of the sequence that starts at `at`: positive when well-formed, otherwise minus the length
// of the longest part that could have begun one (at least 1). Table 3-7 of the Unicode standard.
int sequence_length(std::string_view text, size_t at);

}  // namespace tailrace
