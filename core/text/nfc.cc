#include "core/text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

struct Decomposition {
  uint32_t code_point;
  uint32_t first, second;  // second == 0: a singleton
  bool composes;           // false: a singleton, or excluded from composition
};

struct CombiningRange {
  uint32_t begin, end;  // inclusive
  uint8_t klass;        // canonical combining class, never 0
};

#include "core/text/nfc_table.inc"

// Hangul syllables are arithmetic (section 3.12 of the standard).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

int combining_class(char32_t c) {
  auto it =
      std::upper_bound(std::begin(kCombining), std::end(kCombining), c,
                       [](char32_t x, const CombiningRange& range) { return x < range.begin; });
  if (it == std::begin(kCombining)) return 0;
  --it;
  return c <= it->end ? it->klass : 0;
}

void decompose(char32_t c, std::vector<char32_t>& out) {
  if (c >= kSyllables && c < kSyllables + kNumSyllables) {
    char32_t index = c - kSyllables;
    out.push_back(kLeads + index / (kNumVowels * kNumTails));
    out.push_back(kVowels + index / kNumTails % kNumVowels);
    if (index % kNumTails != 0) out.push_back(kTails + index % kNumTails);
    return;
  }
  auto it = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                             [](const Decomposition& d, char32_t x) { return d.code_point < x; });
  if (it == std::end(kDecompositions) || it->code_point != c) {
    out.push_back(c);
    return;
  }
  // The table holds single steps, as UnicodeData.txt does. Only the first of a pair can have a step
  // of its own; the second asks in vain.
  decompose(it->first, out);
  if (it->second != 0) decompose(it->second, out);
}

// Stable sort of each run of combining marks by class. Marks of one class attach at the same place,
// so their order has a meaning.
void reorder(std::vector<char32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + begin, text.begin() + end, [](char32_t a, char32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

// 0: the two do not compose.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLeads && a < kLeads + kNumLeads && b >= kVowels && b < kVowels + kNumVowels) {
    return kSyllables + ((a - kLeads) * kNumVowels + (b - kVowels)) * kNumTails;
  }
  // kTails itself is no letter: tail 0 is the syllable without one.
  if (a >= kSyllables && a < kSyllables + kNumSyllables && (a - kSyllables) % kNumTails == 0 &&
      b > kTails && b < kTails + kNumTails) {
    return a + (b - kTails);
  }
  static const std::unordered_map<uint64_t, char32_t> pairs = [] {
    std::unordered_map<uint64_t, char32_t> map;
    for (const Decomposition& d : kDecompositions) {
      if (d.composes) map[uint64_t{d.first} << 32 | d.second] = d.code_point;
    }
    return map;
  }();
  auto it = pairs.find(uint64_t{a} << 32 | b);
  return it == pairs.end() ? 0 : it->second;
}

void compose_all(std::vector<char32_t>& text) {
  size_t starter = SIZE_MAX;
  size_t kept = 0;
  int last_class = 0;  // of the last mark kept after the starter; 0: none
  for (char32_t c : text) {
    int klass = combining_class(c);
    // The standard's D115: a mark between the two with the same or a higher class blocks them.
    bool blocked = starter == SIZE_MAX || (kept - starter > 1 && last_class >= klass);
    if (!blocked) {
      if (char32_t whole = compose(text[starter], c)) {
        text[starter] = whole;
        // last_class stays: a mark that has joined the starter is gone and blocks nobody.
        continue;
      }
    }
    if (klass == 0) starter = kept;
    last_class = klass;
    text[kept++] = c;
  }
  text.resize(kept);
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  // No code point below U+0300 changes unless a mark follows it.
  // 0xCC is the first byte of U+0300 in UTF-8, and the first bytes of all that is above are larger.
  bool plain = std::all_of(text.begin(), text.end(),
                           [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
  if (plain) return std::string(text);
  std::vector<char32_t> points;
  for (size_t at = 0; at < text.size();) decompose(next_code_point(text, at), points);
  reorder(points);
  compose_all(points);
  std::string out;
  out.reserve(text.size());
  for (char32_t c : points) append_utf8(out, c);
  return out;
}

}  // namespace tailrace::text
