// Unicode normalisation form C (UAX #15): canonical decomposition, reordering, composition.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace::text {

// `text` must be UTF-8. Tables are of Unicode 14; code points assigned later stay as they are.
std::string normalize_nfc(std::string_view text);

}  // namespace tailrace::text
