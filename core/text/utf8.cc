#include "core/text/utf8.h"

#include <algorithm>

#include "core/base/utf8_sequence.h"

namespace tailrace::text {

size_t first_non_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    int length = sequence_length(text, at);
    if (length < 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

bool is_utf8(std::string_view text) { return first_non_utf8(text) == std::string_view::npos; }

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    int length = sequence_length(text, at);
    if (length > 0) {
      out.append(text.substr(at, length));
      at += length;
    } else {
      // U+FFFD, the replacement character.
      out += "\xEF\xBF\xBD";
      at += -length;
    }
  }
  return out;
}

// Nothing is checked here: callers give UTF-8 that was checked or repaired when it came in, and
// this runs once a character.
char32_t next_code_point(std::string_view text, size_t& at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(at);
  if (lead < 0x80) {
    at += 1;
    return lead;
  }
  if (lead < 0xE0) {
    char32_t c = (lead & 0x1F) << 6 | (byte(at + 1) & 0x3F);
    at += 2;
    return c;
  }
  if (lead < 0xF0) {
    char32_t c = (lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
    at += 3;
    return c;
  }
  char32_t c = (lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 |
               (byte(at + 3) & 0x3F);
  at += 4;
  return c;
}

size_t last_code_point(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

void append_utf8(std::string& out, char32_t c) {
  auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6);
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace tailrace::text
