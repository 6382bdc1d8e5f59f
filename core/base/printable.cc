#include "core/base/printable.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/utf8_sequence.h"

namespace tailrace {

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const int length = sequence_length(text, at);
    const auto lead = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are controls as well: to some terminals U+009B begins an escape sequence.
    const bool is_control =
        (lead < 0x20 && lead != '\n') || lead == 0x7F ||
        (lead == 0xC2 && length == 2 && static_cast<unsigned char>(text[at + 1]) < 0xA0);
    const size_t next = at + static_cast<size_t>(std::max(length, 1));
    if (length > 0 && !is_control) {
      out.append(text.substr(at, next - at));
      at = next;
    }
    // One byte at a time; what follows is looked at anew.
    for (; at < next; ++at) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
  }
  return out;
}

std::string shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  // A character has at most three bytes behind its first.
  const size_t least = end - std::min<size_t>(end, 3);
  while (end > least && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string shown_name(std::string_view text) {
  constexpr size_t kNameBytes = 100;
  return printable(shortened(text, kNameBytes));
}

}  // namespace tailrace
