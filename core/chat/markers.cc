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

// Whether a template may compare it with its own words, so it cannot be marked: roles, such keys.
bool is_name(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
  });
}

using Texts = std::vector<std::string>;
// A text, and what it may not hold.
using Visit = std::function<void(std::string&, const Texts&)>;

// Strings and keys that are no names.
void for_each_text(ordered_json& value, const Texts& forbidden, const Visit& visit) {
  if (value.is_string()) {
    visit(value.get_ref<std::string&>(), forbidden);
  } else if (value.is_array()) {
    for (ordered_json& item : value) for_each_text(item, forbidden, visit);
  } else if (value.is_object()) {
    // The object is built anew, since a key of a JSON object cannot be changed in place.
    ordered_json visited = ordered_json::object();
    for (auto& [key, item] : value.items()) {
      std::string name = key;
      if (!is_name(name)) visit(name, forbidden);
      for_each_text(item, forbidden, visit);
      visited[name] = std::move(item);
    }
    value = std::move(visited);
  }
}

// The same of messages, whose roles are names.
void for_each_text_of_messages(ordered_json& messages, const Forbidden& forbidden,
                               const Visit& visit) {
  for (ordered_json& message : messages) {
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (role == message.end() || !role->is_string()) {
      for_each_text(message, forbidden.always, visit);
      continue;
    }
    const ordered_json name = *role;
    if (!is_name(name.get_ref<const std::string&>()))
      throw UserError(
          "the role {} is not a name: letters, digits, '_', '-' and '.', which no template can "
          "take "
          "for anything else",
          name.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace));
    const bool is_tool = name == "tool" || name == "ipython" || name == "function";
    *role = nullptr;  // keeps its place
    for_each_text(message, is_tool ? forbidden.to_tools : forbidden.always, visit);
    message["role"] = name;
  }
}

size_t second_character(std::string_view text) {
  size_t at = 0;
  text::next_code_point(text, at);
  return at;
}

// Inside each special token that stands in `text`, and inside each that its end or its beginning
// could be a part of, where two texts meet.
std::set<size_t> places(std::string_view text, const Texts& special) {
  std::set<size_t> found;
  for (const std::string& token : special) {
    const size_t inner = second_character(token), last = text::last_code_point(token);
    if (inner >= token.size()) {  // one character has no inside: in front of it
      for (size_t at = text.find(token); at != text.npos; at = text.find(token, at + inner))
        found.insert(at);
      continue;
    }
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

// As JSON that is ASCII alone writes a marker.
std::string escaped(const std::string& marker) {
  const std::string quoted = ordered_json(marker).dump(-1, ' ', /*ensure_ascii=*/true,
                                                       ordered_json::error_handler_t::strict);
  return quoted.substr(1, quoted.size() - 2);
}

// Noncharacters: Unicode keeps them out of text that is exchanged.
std::string unused_marker(const std::vector<std::string>& texts) {
  for (char32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    std::string marker;
    text::append_utf8(marker, c);
    const std::string as_json = escaped(marker);
    if (std::ranges::none_of(texts, [&](const std::string& t) {
          return t.find(marker) != t.npos || t.find(as_json) != t.npos;
        }))
      return marker;
  }
  throw UserError("the messages hold all of U+FDD0 to U+FDEF, which no text should");
}

}  // namespace

std::string mark(ordered_json& messages, ordered_json& tools, const Forbidden& forbidden) {
  const auto for_each = [&](const Visit& visit) {
    for_each_text_of_messages(messages, forbidden, visit);
    for_each_text(tools, forbidden.always, visit);
  };
  std::vector<std::string> texts;
  bool needed = false;
  for_each([&](std::string& text, const Texts& special) {
    if (!text::is_utf8(text)) text = text::repair_utf8(text);
    needed = needed || !places(text, special).empty();
    texts.push_back(text);
  });
  if (!needed) return "";
  const std::string marker = unused_marker(texts);
  for_each([&](std::string& text, const Texts& special) {
    const std::set<size_t> found = places(text, special);
    // From the back, so that the offsets in front stay true.
    for (auto at = found.rbegin(); at != found.rend(); ++at) text.insert(*at, marker);
  });
  return marker;
}

std::vector<size_t> take_out(std::string& text, const std::string& marker) {
  std::vector<size_t> offsets;
  if (marker.empty()) return offsets;
  const std::string as_json = escaped(marker);
  for (size_t at = 0;;) {
    const size_t plain = text.find(marker, at), ascii = text.find(as_json, at);
    at = std::min(plain, ascii);
    if (at == text.npos) return offsets;
    text.erase(at, at == plain ? marker.size() : as_json.size());
    offsets.push_back(at);
  }
}

}  // namespace tailrace::chat
