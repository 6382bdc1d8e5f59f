#include "core/text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <utf8proc.h>

#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

using CodePoint = utf8proc_int32_t;

// A vowel that composes with nothing. utf8proc 2.8 takes it for the tail 0, "no tail", of a Hangul
// syllable, and drops it; at the begin of a stretch it has no syllable before it.
constexpr char32_t kBeforeTails = 0x11A7;

// Code points below U+0300 stay as they are unless a mark follows, and none of them joins what is
// before it. 0xCC is the first byte of U+0300 in UTF-8; the first bytes of all above are larger.
bool may_change(char byte) { return static_cast<uint8_t>(byte) >= 0xCC; }

// Stable sort of each run of combining marks by class: marks of one class attach at the same place,
// so their order has a meaning. utf8proc sorts by exchanging neighbours, in the square of the
// length of a run, and a run may be a whole text.
void sort_marks(std::vector<CodePoint>& points) {
  auto klass = [](CodePoint c) { return utf8proc_get_property(c)->combining_class; };
  for (auto begin = points.begin(); begin != points.end();) {
    auto end = std::find_if(begin, points.end(), [&](CodePoint c) { return klass(c) == 0; });
    if (end - begin > 1)
      std::stable_sort(begin, end, [&](CodePoint a, CodePoint b) { return klass(a) < klass(b); });
    begin = end == points.end() ? end : end + 1;
  }
}

// Appends NFC of a stretch that shares no composition with its neighbours. `points` is room.
void append_nfc(std::string_view stretch, std::vector<CodePoint>& points, std::string& out) {
  points.clear();
  for (size_t at = 0; at < stretch.size();) {
    const auto c = static_cast<CodePoint>(next_code_point(stretch, at));
    CodePoint parts[4];  // the longest canonical decomposition
    int boundary = 0;    // of grapheme clusters: not asked for
    const auto num_parts = utf8proc_decompose_char(c, parts, 4, UTF8PROC_DECOMPOSE, &boundary);
    points.insert(points.end(), parts, parts + num_parts);
  }
  sort_marks(points);
  // STABLE: keeps what is excluded from composition apart.
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto length = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  for (auto i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(points[i]));
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<CodePoint> points;
  for (size_t done = 0; done < text.size();) {
    const size_t first = std::find_if(text.begin() + done, text.end(), may_change) - text.begin();
    // The stretch begins at the letter that a mark may join.
    const size_t begin =
        first == text.size() || first == done ? first : last_code_point(text.substr(0, first));
    out.append(text, done, begin - done);
    size_t end = first;
    for (size_t next = end; next < text.size() && may_change(text[next]); end = next) {
      if (next_code_point(text, next) == kBeforeTails && end > first) break;
    }
    if (end > begin) append_nfc(text.substr(begin, end - begin), points, out);
    done = end;
  }
  return out;
}

}  // namespace tailrace::text
