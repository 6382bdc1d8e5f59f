#include "core/text/utf8.h"

#include <algorithm>

#include <fmt/format.h>

namespace tailrace::text {

namespace {

// Length of the sequence that starts at `at`: positive when well-formed, otherwise minus the length
// of the longest part that could have begun one (at least 1). Table 3-7 of the Unicode standard.
int sequence_length(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(at);
  if (lead < 0x80) return 1;
  int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  // 80 to BF continue a character; C0 and C1 could only begin overlong forms, F5 and above nothing.
  if (lead < 0xC2 || lead > 0xF4) return -1;
  // The second byte's range leaves out overlong forms (E0, F0), surrogates (ED) and what lies
  // beyond U+10FFFF (F4).
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

size_t first_non_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    int length = sequence_length(text, at);
    if (length < 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

bool is_utf8(std::string_view text) { return first_non_utf8(text) == std::string_view::npos; }

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const int length = sequence_length(text, at);
    size_t next = at;
    const char32_t c = length > 0 ? next_code_point(text, next) : 0;
    // 80 to 9F are controls as well: to some terminals U+009B begins an escape sequence.
    if ((c < 0x20 && text[at] != '\n') || (c >= 0x7F && c < 0xA0)) {
      // One byte at a time; what follows is looked at anew.
      next = at + static_cast<size_t>(std::max(length, 1));
      for (; at < next; ++at) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    } else {
      out.append(text.substr(at, next - at));
      at = next;
    }
  }
  return out;
}

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
