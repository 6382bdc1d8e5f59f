// The 128-bit digest (XXH3) that names a weight version or proves bytes, as 32 hex digits. They are
// computed in digest_of.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace {

using Digest = std::string;

inline constexpr size_t kDigestDigits = 32;

// Whether a text from outside looks like one: so many digits, with letters that are small.
constexpr bool is_digest(std::string_view text) {
  return text.size() == kDigestDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace tailrace
