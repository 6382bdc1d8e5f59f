#include "core/chat/markers.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/text/utf8.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

// All strings but roles: what a template compares with its own words.
void for_each_text(ordered_json& value, const std::function<void(std::string&)>& visit) {
  if (value.is_string()) {
    visit(value.get_ref<std::string&>());
  } else if (value.is_array()) {
    for (ordered_json& item : value) for_each_text(item, visit);
  } else if (value.is_object()) {
    for (auto& [key, item] : value.items())
      if (key != "role") for_each_text(item, visit);
  }
}

size_t second_character(std::string_view text) {
  size_t at = 0;
  text::next_code_point(text, at);
  return at;
}

// Inside each special token that stands in `text`, and inside each that its end or its beginning
// could be a part of, where two texts meet.
std::set<size_t> places(std::string_view text, std::span<const std::string> special) {
  std::set<size_t> found;
  for (const std::string& token : special) {
    const size_t inner = second_character(token), last = text::last_code_point(token);
    if (inner >= token.size()) continue;  // one character has no inside
    for (size_t at = text.find(token); at != text.npos; at = text.find(token, at + 1))
      found.insert(at + inner);
    for (size_t size = inner + 1; size < token.size() && size <= text.size(); ++size) {
      if (text.ends_with(std::string_view(token).substr(0, size)))
        found.insert(text.size() - size + inner);
    }
    for (size_t size = token.size() - last + 1; size < token.size() && size <= text.size();
         ++size) {
      if (text.starts_with(std::string_view(token).substr(token.size() - size)))
        found.insert(size - (token.size() - last));
    }
  }
  return found;
}

// Noncharacters: Unicode keeps them out of text that is exchanged.
std::string unused_marker(std::span<const std::string* const> texts) {
  for (char32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    std::string marker;
    text::append_utf8(marker, c);
    if (std::ranges::none_of(texts,
                             [&](const std::string* t) { return t->find(marker) != t->npos; }))
      return marker;
  }
  throw UserError("the messages hold all of U+FDD0 to U+FDEF, which no text should");
}

}  // namespace

ordered_json mark(const ordered_json& messages, std::span<const std::string> special,
                  std::string& marker) {
  marker.clear();
  ordered_json marked = messages;
  std::vector<std::string*> texts;
  for_each_text(marked, [&](std::string& text) {
    if (!text::is_utf8(text)) text = text::repair_utf8(text);
    texts.push_back(&text);
  });
  for (std::string* text : texts) {
    const std::set<size_t> found = places(*text, special);
    if (found.empty()) continue;
    if (marker.empty())
      marker = unused_marker(std::vector<const std::string*>(texts.begin(), texts.end()));
    for (auto at = found.rbegin(); at != found.rend(); ++at) text->insert(*at, marker);
  }
  return marked;
}

std::vector<size_t> take_out(std::string& text, const std::string& marker) {
  std::vector<size_t> offsets;
  if (marker.empty()) return offsets;
  for (size_t at = text.find(marker); at != text.npos; at = text.find(marker, at)) {
    text.erase(at, marker.size());
    offsets.push_back(at);
  }
  return offsets;
}

}  // namespace tailrace::chat
