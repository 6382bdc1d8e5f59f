#include "core/base/excerpt.h"

#include <cstddef>

#include "core/base/printable.h"

namespace tailrace {

std::string excerpt(std::string_view text) {
  constexpr size_t kMostBytes = 100;
  if (text.size() <= kMostBytes) return printable(text);
  size_t end = kMostBytes;
  // Not in the middle of a character, which has up to four bytes.
  while (end > kMostBytes - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return printable(text.substr(0, end)) + "...";
}

}  // namespace tailrace
