#include "reward/command/answer.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "reward/judge.h"
#include "sandbox/command/answer_line.h"

namespace tailrace {
namespace {

using nlohmann::json;
using sandbox::excerpt;
using sandbox::is_metric_name;
using sandbox::kMostMetrics;
using sandbox::no_object;

constexpr size_t kMostErrorBytes = 1000;

std::optional<double> number_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return is_reward(number) ? std::optional(number) : std::nullopt;
}

std::string number_shown(const json& value) {
  return value.is_null() ? "null, NaN or infinite" : excerpt(json_text(value));
}

Result<Score> score_of(const json& answer) {
  if (const auto error = answer.find("error"); error != answer.end() && !error->is_null())
    return Failure{"the program says: " +
                   printable((error->is_string() ? error->get<std::string>() : json_text(*error))
                                 .substr(0, kMostErrorBytes))};
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

Result<CommandAnswer> parse_command_answer(std::string_view line) {
  const auto text = sandbox::sound_line(line);
  if (!text) return text.failure();
  const json answer = parse_json(text.value());
  if (!answer.is_object()) return Failure{no_object(line)};
  const auto id = answer.find("id");
  if (id == answer.end() || !id->is_number_integer())
    return Failure{
        fmt::format("wrote an answer without the id of an episode: '{}'", excerpt(line))};
  return CommandAnswer{.id = id->get<int64_t>(), .score = score_of(answer)};
}

}  // namespace tailrace
