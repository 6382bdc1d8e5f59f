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

// U+11A7 is a vowel, though the arithmetic of tails starts from it.
TEST(Nfc, KeepsAVowelThatIsNoTail) {
  EXPECT_EQ(normalize_nfc("\uAC00\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A7\u11A8\u0301"), "\uAC00\u11A7\u11A8\u0301");
}

// FNV-1a over UTF-8. The digests were made with Python's unicodedata2 15.0 (Unicode 15, as
// utf8proc 2.8); of code points that are assigned later another version has other ones.
class Digest {
 public:
  void add(const std::string& text) {
    for (char byte : text) value_ = (value_ ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// NFC(c) and NFC(c + U+0301 + U+0323), for every code point below U+30000 but the surrogates.
TEST(Nfc, AgreesWithAnotherImplementationOnEveryCodePoint) {
  Digest digest;
  for (char32_t c = 1; c < 0x30000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    digest.add(normalize_nfc(text));
    digest.add(normalize_nfc(text + "\u0301\u0323"));
  }
  EXPECT_EQ(digest.value(), 0x1bfd35cce2d1fa90);
}

// Texts of 1 to 8 code points from the ranges where most of the rules meet.
TEST(Nfc, AgreesWithAnotherImplementationOnMixedTexts) {
  constexpr char32_t kRanges[][2] = {{0x20, 0x7E},       {0xC0, 0x24F},      {0x300, 0x36F},
                                     {0x591, 0x5C7},     {0x610, 0x65F},     {0x900, 0xDFF},
                                     {0x1100, 0x11FF},   {0x1DC0, 0x1DFF},   {0x1E00, 0x1FFF},
                                     {0x3041, 0x30FF},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},
                                     {0x11080, 0x110FF}, {0x1D15E, 0x1D1C0}, {0x2F800, 0x2FA1D}};
  uint64_t state = 20261123;
  auto below = [&](uint64_t n) {  // Knuth's generator, to be had in any language
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<char32_t>((state >> 33) % n);
  };
  Digest digest;
  int changed = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (char32_t left = 1 + below(8); left > 0; --left) {
      const auto& [first, last] = kRanges[below(std::size(kRanges))];
      append_utf8(text, first + below(last - first + 1));
    }
    const std::string normal = normalize_nfc(text);
    changed += normal != text;
    digest.add(normal);
  }
  EXPECT_EQ(changed, 100612);
  EXPECT_EQ(digest.value(), 0x7b8c05dca8886234);
}

// A text that is one run of marks, every second of them out of order: exchanges of neighbours
// would take hours.
TEST(Nfc, ALongRunOfMarksIsNotQuadratic) {
  std::string marks, low, high;
  for (int i = 0; i < 500'000; ++i) {
    marks += "\u0301\u0323";
    low += "\u0323";
    high += "\u0301";
  }
  EXPECT_EQ(normalize_nfc("q" + marks), "q" + low + high);
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
