#include "rollout/agent/agent_reward.h"

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "sandbox/command/answer_line.h"

namespace tailrace {
namespace {

constexpr size_t kMostShown = 200;

std::string_view last_line_of(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == text.npos) return {};
  text = text.substr(0, end + 1);
  const size_t begin = text.find_last_of('\n');
  return begin == text.npos ? text : text.substr(begin + 1);
}

bool is_number(const nlohmann::json& value) {
  return value.is_boolean() || (value.is_number() && sandbox::is_reported(value.get<double>()));
}

double number_of(const nlohmann::json& value) {
  return value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
}

}  // namespace

Result<AgentReward> parse_agent_reward(const std::string& text) {
  const std::string_view line = last_line_of(text);
  if (line.empty()) return Failure{"it gives no reward"};
  const auto refuse = [&](std::string_view why) {
    return Failure{
        fmt::format("its last line is no reward, {}: '{}'", why, line.substr(0, kMostShown))};
  };
  const auto sound = sandbox::sound_line(line);
  if (!sound) return refuse(sound.failure().message);
  const nlohmann::json value = parse_json(sound.value());
  AgentReward reward;
  if (is_number(value)) {
    reward.reward = number_of(value);
    return reward;
  }
  if (!value.is_object())
    return refuse("which is a number or {\"reward\": NUMBER, \"metrics\": {...}}");
  const auto said = value.find("reward");
  if (said == value.end() || !is_number(*said))
    return refuse("since \"reward\" is no number of at most 1e30");
  reward.reward = number_of(*said);
  if (const auto episode = value.find("episode");
      episode != value.end() && episode->is_number_integer())
    reward.episode = episode->get<int64_t>();
  const auto metrics = value.find("metrics");
  if (metrics == value.end()) return reward;
  if (!metrics->is_object() || metrics->size() > sandbox::kMostMetrics)
    return refuse("since \"metrics\" is no object of at most 64 numbers");
  for (const auto& [name, number] : metrics->items()) {
    if (!sandbox::is_metric_name(name))
      return refuse(
          fmt::format("since the name of the metric '{}' is not of letters, digits, '_', "
                      "'-' and '.', 64 of them at most",
                      sandbox::excerpt(name)));
    if (!is_number(number))
      return refuse(fmt::format("since the metric '{}' is no number of at most 1e30", name));
    reward.metrics.emplace_back(name, number_of(number));
  }
  return reward;
}

}  // namespace tailrace
