#include "core/chat/jinja_string.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

// Punctuation, and the scripts of East Asia: nothing there has a case.
bool surely_without_case(char32_t c) {
  return c < 0x80 || (c >= 0x2000 && c < 0x2070) || (c >= 0x20A0 && c < 0x20D0) ||
         (c >= 0x2E80 && c < 0xA4D0) || (c >= 0xAC00 && c < 0xD7A4) ||
         (c >= 0xFE00 && c < 0xFF00) || (c >= 0x1F300 && c < 0x1FB00);
}

// Full case mapping needs tables of Unicode, where one letter may become three. A text that would
// need them is refused, since a silent difference from Python would change the prompt.
void check_case(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const char32_t c = text::next_code_point(text, at);
    if (!surely_without_case(c))
      throw Error("upper and lower case are known for ASCII only; the text has U+{:04X}",
                  static_cast<uint32_t>(c));
  }
}

std::string mapped(std::string_view text, char (*letter)(char)) {
  check_case(text);
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), letter);
  return out;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// str.isprintable(), but for code points that Unicode has not assigned.
bool is_printable(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return false;
  if (c > 0x20 && is_python_space(c)) return false;
  if ((c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E)) return false;
  if ((c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB)) return false;
  return !(c >= 0xE000 && c <= 0xF8FF) && (c & 0xFFFE) != 0xFFFE && c < 0xE0000;
}

std::vector<std::string> split_white_space(std::string_view text, int64_t max_splits, Side from,
                                           Budget& budget) {
  std::vector<std::string> parts;
  while (true) {
    text = strip(text, std::nullopt, from);
    if (text.empty()) break;
    budget.spend(1);
    if (max_splits == 0) {
      parts.emplace_back(text);  // with the white space of its far end
      break;
    }
    --max_splits;
    if (from == Side::kLeft) {
      size_t end = 0;
      for (size_t at = 0; at < text.size() && !is_python_space(text::next_code_point(text, at));
           end = at) {
      }
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    } else {
      size_t begin = text.size();
      while (begin > 0) {
        const size_t last = text::last_code_point(text.substr(0, begin));
        size_t at = last;
        if (is_python_space(text::next_code_point(text, at))) break;
        begin = last;
      }
      parts.emplace_back(text.substr(begin));
      text = text.substr(0, begin);
    }
  }
  return parts;
}

}  // namespace

bool is_python_space(char32_t c) { return text::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

int64_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) out.push_back(text::next_code_point(text, at));
  return out;
}

std::string from_code_points(std::u32string_view code_points) {
  std::string out;
  for (char32_t c : code_points) text::append_utf8(out, c);
  return out;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> chars, Side side) {
  // A set: a text of a million characters may be stripped of a million others.
  std::unordered_set<char32_t> set;
  if (chars) {
    for (char32_t c : to_code_points(*chars)) set.insert(c);
  }
  auto goes = [&](char32_t c) { return chars ? set.contains(c) : is_python_space(c); };
  while (side != Side::kRight && !text.empty()) {
    size_t at = 0;
    if (!goes(text::next_code_point(text, at))) break;
    text.remove_prefix(at);
  }
  while (side != Side::kLeft && !text.empty()) {
    const size_t last = text::last_code_point(text);
    size_t at = last;
    if (!goes(text::next_code_point(text, at))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max_splits, Side from, Budget& budget) {
  std::vector<std::string> parts;
  if (!separator) {
    parts = split_white_space(text, max_splits, from, budget);
  } else {
    for (; max_splits != 0; --max_splits) {
      const size_t at = from == Side::kLeft ? text.find(*separator) : text.rfind(*separator);
      if (at == std::string_view::npos) break;
      budget.spend(1);
      const size_t behind = at + separator->size();
      parts.emplace_back(from == Side::kLeft ? text.substr(0, at) : text.substr(behind));
      text = from == Side::kLeft ? text.substr(behind) : text.substr(0, at);
    }
    parts.emplace_back(text);
  }
  if (from == Side::kRight) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends, Budget& budget) {
  std::vector<std::string> lines;
  for (size_t begin = 0, at = 0; begin < text.size();) {
    size_t end = at;
    const bool over = at == text.size();
    if (!over && !is_line_end(text::next_code_point(text, at))) continue;
    // "\r\n" ends one line and not two.
    if (!over && text[end] == '\r' && at < text.size() && text[at] == '\n') ++at;
    budget.spend(1);
    lines.emplace_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  std::string out;
  size_t at = 0;
  while (count != 0) {
    size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    --count;
    out.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
    // The empty text stands between all characters: the next one is copied, so that the search
    // moves on by whole code points.
    if (!from.empty()) continue;
    if (at == text.size()) break;
    const size_t begin = at;
    text::next_code_point(text, at);
    out.append(text.substr(begin, at - begin));
  }
  return out.append(text.substr(at));
}

std::string to_lower(std::string_view text) { return mapped(text, lower); }
std::string to_upper(std::string_view text) { return mapped(text, upper); }

std::string capitalized(std::string_view text) {
  std::string out = to_lower(text);
  if (!out.empty()) out[0] = upper(out[0]);
  return out;
}

std::string title_case(std::string_view text) {
  std::string out = to_lower(text);
  for (size_t i = 0; i < out.size(); ++i) {
    if (i == 0 || !is_ascii_letter(out[i - 1])) out[i] = upper(out[i]);
  }
  return out;
}

std::string python_repr(std::string_view text) {
  // Python prefers single quotes, and takes double ones where that saves an escape.
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = text::next_code_point(text, at);
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\\' || c == static_cast<char32_t>(quote))
      (out += '\\') += static_cast<char>(c);
    else if (is_printable(c))
      out.append(text.substr(begin, at - begin));
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
  return out + quote;
}

}  // namespace tailrace::chat::jinja
