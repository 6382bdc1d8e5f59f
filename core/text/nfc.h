// Unicode normalisation form C (UAX #15), by utf8proc.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace::text {

// `text` must be UTF-8. Code points that utf8proc does not know yet (its 2.8 has the tables of
// Unicode 15) stay as they are. Time: n log n, whatever the text.
std::string normalize_nfc(std::string_view text);

}  // namespace tailrace::text
