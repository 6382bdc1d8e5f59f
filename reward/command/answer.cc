#include "reward/command/answer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace {
namespace {

using nlohmann::json;

constexpr size_t kMostMetrics = 64, kMostNameBytes = 64, kMostErrorBytes = 1000;

// Python writes numbers that are not finite as words that are no JSON. With them the line is read,
// and its id says which episode has no verdict.
constexpr std::string_view kNotFinite[] = {"-Infinity", "Infinity", "NaN"};

json parse_line(std::string_view line) {
  json value = parse_json(line);
  if (!value.is_discarded()) return value;
  std::string text(line);
  for (const std::string_view word : kNotFinite)
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at))
      text.replace(at, word.size(), "null");
  return parse_json(text);
}

std::optional<double> number_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
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
        fmt::format("its \"reward\" is {}, which is no finite number",
                    reward->is_null() ? "null, NaN or infinite" : excerpt(json_text(*reward)))};
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
          "its metric \"{}\" is {}; a metric is a finite number, and its name is of letters, "
          "digits, '_', '-' and '.'",
          excerpt(name), excerpt(json_text(value)))};
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
