#include "sandbox/command/answer_line.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace tailrace::sandbox {
namespace {

// An answer is no deeper than a schema of a tool is. What shows a part of an answer in a message
// calls itself for each level, and a megabyte of brackets would take all of the stack.
constexpr int kMostDepth = 100;
// The reader that keeps the order of members looks for each name among those before it.
constexpr int kMostMembers = 20'000;

// Calls `with` with each string, each word or number, and each other character.
template <class With>
void each_token(std::string_view line, const With& with) {
  constexpr std::string_view kWord =
      "+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (size_t begin = 0, end; begin < line.size(); begin = end) {
    end = begin + 1;
    if (line[begin] == '"') {
      while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, line.size());
    } else if (kWord.find(line[begin]) != std::string_view::npos) {
      end = std::min(line.find_first_not_of(kWord, begin), line.size());
    }
    with(line.substr(begin, end - begin));
  }
}

// NaN, -Infinity, 1e400: Python writes the first two, and no JSON has any of them.
bool is_not_finite(std::string_view token) {
  const std::string word(token);
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end != word.c_str() && end == word.c_str() + word.size() && !std::isfinite(value);
}

}  // namespace

Result<std::string> sound_line(std::string_view line) {
  std::string sound;
  sound.reserve(line.size());
  int depth = 0, deepest = 0, members = 0;
  each_token(line, [&](std::string_view token) {
    if (token == "[" || token == "{") deepest = std::max(deepest, ++depth);
    if (token == "]" || token == "}") --depth;
    if (token == ":") ++members;
    const bool may_be_number = token.front() != '"' && token.size() > 2;
    sound += may_be_number && is_not_finite(token) ? "null" : token;
  });
  if (deepest > kMostDepth)
    return Failure{fmt::format("wrote an answer that is nested more than {} deep: '{}'", kMostDepth,
                               excerpt(line))};
  if (members > kMostMembers)
    return Failure{
        fmt::format("wrote an answer of more than {} members: '{}'", kMostMembers, excerpt(line))};
  return sound;
}

std::string no_object(std::string_view line) {
  return fmt::format(
      "wrote a line to stdout that is no JSON object: '{}'. What is not an answer belongs on "
      "stderr",
      excerpt(line));
}

std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string shown;
  for (const char c : text.substr(0, kLongest))
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return text.size() > kLongest ? shown + "..." : shown;
}

bool is_metric_name(std::string_view name) {
  constexpr size_t kMostBytes = 64;
  return !name.empty() && name.size() <= kMostBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace tailrace::sandbox
