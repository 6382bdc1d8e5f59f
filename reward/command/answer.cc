#include "reward/command/answer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

using nlohmann::json;

constexpr size_t kMostMetrics = 64, kMostNameBytes = 64, kMostErrorBytes = 1000;

// A reward is no deeper than the third level. What shows a part of an answer in a message calls
// itself for each level, and a megabyte of brackets would take all of the stack.
constexpr int kMostDepth = 100;

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

bool is_deep(std::string_view line) {
  int depth = 0, deepest = 0;
  each_token(line, [&](std::string_view token) {
    if (token == "[" || token == "{") deepest = std::max(deepest, ++depth);
    if (token == "]" || token == "}") --depth;
  });
  return deepest > kMostDepth;
}

// NaN, -Infinity, 1e400: Python writes the first two, and no JSON has any of them.
bool is_not_finite(std::string_view token) {
  const std::string word(token);
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() && !std::isfinite(value);
}

// A line with numbers that are not finite is read without them: its id says which episode has no
// verdict.
json parse_line(std::string_view line) {
  json value = parse_json(line);
  if (!value.is_discarded()) return value;
  std::string text;
  each_token(line, [&](std::string_view token) { text += is_not_finite(token) ? "null" : token; });
  return parse_json(text);
}

std::optional<double> number_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return is_reward(number) ? std::optional(number) : std::nullopt;
}

std::string number_shown(const json& value) {
  return value.is_null() ? "null, NaN or infinite" : excerpt(json_text(value));
}

// It becomes a part of the name of a metric.
bool is_metric_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

Result<Score> score_of(const json& answer) {
  if (const auto error = answer.find("error"); error != answer.end() && !error->is_null())
    return Failure{"the program says: " +
                   (error->is_string() ? error->get<std::string>() : json_text(*error))
                       .substr(0, kMostErrorBytes)};
  const auto reward = answer.find("reward");
  if (reward == answer.end()) return Failure{"its answer has no \"reward\""};
  const auto number = number_of(*reward);
  if (!number)
    return Failure{
        fmt::format("its \"reward\" is {}, which is no finite number of at most {:g} in size",
                    number_shown(*reward), kLargestReward)};
  Score score{.reward = *number, .metrics = {}};
  const auto metrics = answer.find("metrics");
  if (metrics == answer.end() || metrics->is_null()) return score;
  if (!metrics->is_object() || metrics->size() > kMostMetrics)
    return Failure{
        fmt::format("its \"metrics\" are no object of at most {} numbers", kMostMetrics)};
  for (const auto& [name, value] : metrics->items()) {
    const auto metric = number_of(value);
    if (!metric || !is_metric_name(name))
      return Failure{fmt::format(
          "its metric \"{}\" is {}; a metric is a finite number of at most {:g} in size, and its "
          "name is of letters, digits, '_', '-' and '.'",
          excerpt(name), number_shown(value), kLargestReward)};
    score.metrics.emplace_back(name, *metric);
  }
  return score;
}

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string shown;
  for (const char c : text.substr(0, kLongest))
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return text.size() > kLongest ? shown + "..." : shown;
}

Result<CommandAnswer> parse_command_answer(std::string_view line) {
  if (is_deep(line))
    return Failure{fmt::format("wrote an answer that is nested more than {} deep: '{}'", kMostDepth,
                               excerpt(line))};
  const json answer = parse_line(line);
  if (!answer.is_object())
    return Failure{
        fmt::format("wrote a line to stdout that is no JSON object: '{}'. What is not an "
                    "answer belongs on stderr",
                    excerpt(line))};
  const auto id = answer.find("id");
  if (id == answer.end() || !id->is_number_integer())
    return Failure{
        fmt::format("wrote an answer without the id of an episode: '{}'", excerpt(line))};
  return CommandAnswer{.id = id->get<int64_t>(), .score = score_of(answer)};
}

}  // namespace tailrace
