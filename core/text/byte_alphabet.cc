#include "core/text/byte_alphabet.h"

#include <array>
#include <string>

#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  // 0x100 and the 68 bytes that are not printable.
  std::array<int16_t, 0x144> bytes;  // -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      // The characters that Latin-1 can print. 0xAD is left out: a soft hyphen shows nothing.
      bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      char32_t c = itself ? byte : next++;
      append_utf8(characters[byte], c);
      bytes[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_character(uint8_t byte) { return alphabet().characters[byte]; }

std::optional<uint8_t> byte_of_character(char32_t character) {
  const Alphabet& a = alphabet();
  if (character >= a.bytes.size() || a.bytes[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(a.bytes[character]);
}

}  // namespace tailrace::text
