#include "core/model/config_text.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace tailrace {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Behind the string whose first quote is at `at`.
size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

// Begin and end of each dtype in the outermost object.
std::vector<std::pair<size_t, size_t>> dtypes_in(std::string_view text) {
  std::vector<std::pair<size_t, size_t>> found;
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{' || text[at] == '[') ++depth;
    if (text[at] == '}' || text[at] == ']') --depth;
    if (text[at] != '"') continue;
    const size_t end = string_end(text, at);
    const std::string_view name = text.substr(at + 1, end - at - 2);
    at = end - 1;
    const size_t colon = text.find_first_not_of(kBlanks, end);
    // A string before no colon is a value.
    if (depth != 1 || colon == std::string_view::npos || text[colon] != ':') continue;
    if (name != "torch_dtype" && name != "dtype") continue;
    const size_t begin = text.find_first_not_of(kBlanks, colon + 1);
    if (begin == std::string_view::npos) break;
    found.emplace_back(begin, text[begin] == '"' ? string_end(text, begin)
                                                 : text.find_first_of(",} \t\r\n", begin));
    at = found.back().second - 1;
  }
  return found;
}

}  // namespace

std::string with_dtype(std::string_view text, std::string_view dtype) {
  const std::string value = "\"" + std::string(dtype) + "\"";
  std::string changed;
  size_t copied = 0;
  for (const auto& [begin, end] : dtypes_in(text)) {
    changed += text.substr(copied, begin - copied);
    changed += value;
    copied = end;
  }
  if (copied == 0) {
    const size_t open = text.find('{') + 1;
    changed = std::string(text.substr(0, open)) + "\n  \"torch_dtype\": " + value + ",";
    copied = open;
  }
  changed += text.substr(copied);
  return changed;
}

}  // namespace tailrace
