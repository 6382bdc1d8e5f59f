#include "core/base/utf8_sequence.h"

namespace tailrace {

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

}  // namespace tailrace
