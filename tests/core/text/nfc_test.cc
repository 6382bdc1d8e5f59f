#include "core/text/nfc.h"

#include <gtest/gtest.h>

#include "core/text/utf8.h"

namespace tailrace::text {
namespace {

TEST(Nfc, LeavesAsciiAlone) { EXPECT_EQ(normalize_nfc("plain text\n"), "plain text\n"); }

TEST(Nfc, ComposesAMarkWithItsLetter) { EXPECT_EQ(normalize_nfc("e\u0301"), "\u00E9"); }

TEST(Nfc, SortsMarksByClassAndComposesAcrossThem) {
  EXPECT_EQ(normalize_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(normalize_nfc("a\u0323\u0302"), "\u1EAD");
  EXPECT_EQ(normalize_nfc("a\u0302\u0323"), "\u1EAD");
}

TEST(Nfc, KeepsCompositionExclusionsApart) {
  EXPECT_EQ(normalize_nfc("\u0958"), "\u0915\u093C");
  EXPECT_EQ(normalize_nfc("\u212B"), "\u00C5");
}

TEST(Nfc, HandlesHangulByArithmetic) {
  EXPECT_EQ(normalize_nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(normalize_nfc("\uD55C"), "\uD55C");
}

// The digest was made with Python's unicodedata (Unicode 14): FNV-1a over the UTF-8 of NFC(c) and
// of NFC(c + U+0301 + U+0323), for every code point below U+30000 but the surrogates.
TEST(Nfc, AgreesWithAnotherImplementationOnEveryCodePoint) {
  uint64_t digest = 0xcbf29ce484222325;
  auto add = [&](const std::string& text) {
    for (char byte : text) digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  };
  for (char32_t c = 1; c < 0x30000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    add(normalize_nfc(text));
    add(normalize_nfc(text + "\u0301\u0323"));
  }
  EXPECT_EQ(digest, 0x3623163e5d94c460);
}

TEST(Utf8, RepairsEachMaximalPartOnce) {
  EXPECT_EQ(repair_utf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(repair_utf8("\xE2\x82"), "\uFFFD");                  // cut
  EXPECT_EQ(repair_utf8("\xE2\x28\xA1"), "\uFFFD(\uFFFD");       // broken
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_FALSE(is_utf8("\xC0\xAF"));
}

}  // namespace
}  // namespace tailrace::text
