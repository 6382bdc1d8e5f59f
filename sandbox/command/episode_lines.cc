#include "sandbox/command/episode_lines.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/base/printable.h"
#include "sandbox/command/answer_line.h"

namespace tailrace::sandbox {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostEnvMetrics = 64, kMostMetricBytes = 64, kMostReasonBytes = 1000;
constexpr size_t kMostNameBytesOfInfo = 64, kMostWords = 100'000;
constexpr int64_t kMostTurnsOfInfo = int64_t{1} << 30;
// The bound on a step's reward, the same as that of a verifier.
constexpr double kLargestStepReward = 1e30;

// Thrown and caught in this file: why an answer is none.
struct Unsound {
  std::string why;
};

template <class... Args>
[[noreturn]] void unsound(fmt::format_string<Args...> text, Args&&... args) {
  throw Unsound{fmt::format(text, std::forward<Args>(args)...)};
}

std::string seen(const ordered_json& value) {
  return value.is_null() ? "null, NaN or infinite" : excerpt(json_text(value));
}

using Words = std::vector<std::string>;

// The words that an answer may have, beside "error" and "unsupported".
const Words& words_of_info() {
  static const Words words = {"name",      "vocabulary",        "stop_strings",
                              "max_turns", "max_action_tokens", "needs_dataset",
                              "verifier"};
  return words;
}
// The words of a step, and of reset too: its answer may be made by the same function.
const Words& words_of_step() {
  static const Words words = {"text",       "messages",  "tools",   "reward",
                              "terminated", "truncated", "metrics", "reason",
                              "verifier",   "evidence",  "state"};
  return words;
}
const Words& words_of_action() {
  static const Words words = {"action"};
  return words;
}

// A word of other interfaces, and ours for it.
struct OtherWord {
  const char *theirs, *ours;
};
constexpr OtherWord kOtherWords[] = {{"done", "terminated"},
                                     {"observation", "text"},
                                     {"obs", "text"},
                                     {"info", "metrics"},
                                     {"max_episode_steps", "max_turns"},
                                     {"max_steps", "max_turns"}};

// A word that nobody reads is most likely a mistake: an end that is not heard, or a reward.
void refuse_unknown(const ordered_json& answer, const Words& known) {
  const auto is_known = [&](std::string_view word) {
    return std::ranges::find(known, word) != known.end();
  };
  for (const auto& [word, value] : answer.items()) {
    if (is_known(word) || word == "error" || word == "final" || word == "unsupported") continue;
    const std::string shown = excerpt(word);
    std::string meant = did_you_mean(shown, known);
    for (const auto& [theirs, ours] : kOtherWords)
      if (word == theirs && is_known(ours)) meant = fmt::format("; did you mean '{}'?", ours);
    unsound("answers with \"{}\", which is not known{} Known are {}", shown, meant,
            join_texts(known, ", "));
  }
}

// The member, or null where it is missing or null.
const ordered_json* member(const ordered_json& answer, const char* name) {
  const auto at = answer.find(name);
  return at == answer.end() || at->is_null() ? nullptr : &*at;
}

std::string text_member(const ordered_json& answer, const char* name) {
  const ordered_json* value = member(answer, name);
  if (value == nullptr) return "";
  if (!value->is_string())
    unsound("answers with the \"{}\" {}, which is no text", name, seen(*value));
  return value->get<std::string>();
}

bool flag_member(const ordered_json& answer, const char* name) {
  const ordered_json* value = member(answer, name);
  if (value == nullptr) return false;
  if (!value->is_boolean())
    unsound("answers with \"{}\": {}, which is neither true nor false", name, seen(*value));
  return value->get<bool>();
}

double number_in(const ordered_json& value, const std::string& name) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(std::abs(number) <= kLargestStepReward))
    unsound("answers with {}: {}, which is no finite number of at most {:g} in size", name,
            seen(value), kLargestStepReward);
  return number;
}

int64_t count_member(const ordered_json& answer, const char* name, int64_t fallback) {
  const ordered_json* value = member(answer, name);
  if (value == nullptr) return fallback;
  const bool is_count = value->is_number_integer() && value->get<double>() >= 1 &&
                        value->get<double>() <= static_cast<double>(kMostTurnsOfInfo);
  if (!is_count)
    unsound("answers info with \"{}\": {}, which is no whole number from 1 to {}", name,
            seen(*value), kMostTurnsOfInfo);
  return value->get<int64_t>();
}

std::vector<std::string> texts_member(const ordered_json& answer, const char* name) {
  std::vector<std::string> texts;
  const ordered_json* value = member(answer, name);
  if (value == nullptr) return texts;
  const bool is_list = value->is_array() && value->size() <= kMostWords &&
                       std::ranges::all_of(*value, [](const auto& one) { return one.is_string(); });
  if (!is_list)
    unsound("answers info with \"{}\": {}, which is no list of texts", name, seen(*value));
  for (const ordered_json& one : *value) texts.push_back(one.get<std::string>());
  return texts;
}

// A list of objects, as JSON.
std::string list_member(const ordered_json& answer, const char* name) {
  const ordered_json* value = member(answer, name);
  if (value == nullptr) return "";
  const bool is_list = value->is_array() &&
                       std::ranges::all_of(*value, [](const auto& one) { return one.is_object(); });
  if (!is_list) unsound("answers with \"{}\": {}, which is no list of objects", name, seen(*value));
  return json_text(*value);
}

Observation observation_of(const ordered_json& answer) {
  Observation heard{.text = text_member(answer, "text"),
                    .messages = list_member(answer, "messages"),
                    .tools = list_member(answer, "tools"),
                    .state = text_member(answer, "state")};
  if (!heard.text.empty() && !heard.messages.empty())
    unsound("answers with both \"text\" and \"messages\"; an observation is one of them");
  const size_t bytes =
      heard.text.size() + heard.messages.size() + heard.tools.size() + heard.state.size();
  if (bytes > static_cast<size_t>(kMostObservationBytes))
    unsound("answers with an observation of {} bytes; it may have {}", bytes,
            kMostObservationBytes);
  return heard;
}

bool is_name_of_metric(std::string_view name) {
  return !name.empty() && name.size() <= kMostMetricBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

MetricList metrics_of(const ordered_json& answer) {
  MetricList metrics;
  const ordered_json* value = member(answer, "metrics");
  if (value == nullptr) return metrics;
  if (!value->is_object() || value->size() > kMostEnvMetrics)
    unsound("answers with \"metrics\": {}, which is no object of at most {} numbers", seen(*value),
            kMostEnvMetrics);
  for (const auto& [name, number] : value->items()) {
    if (!is_name_of_metric(name))
      unsound("answers with the metric \"{}\"; its name is of letters, digits, '_', '-' and '.'",
              excerpt(name));
    metrics.emplace_back(name, number_in(number, "the metric \"" + name + "\""));
  }
  return metrics;
}

StepResult step_of(const ordered_json& answer, EnvironmentCall::Kind kind,
                   const EnvironmentInfo& info) {
  StepResult result;
  result.observation = observation_of(answer);
  if (kind == EnvironmentCall::Kind::kReset) return result;
  result.terminated = flag_member(answer, "terminated");
  result.truncated = flag_member(answer, "truncated");
  if (kind == EnvironmentCall::Kind::kCut) {
    result.terminated = false;
    result.truncated = true;
  }
  if (result.terminated && result.truncated)
    unsound("answers with an end that is terminated and truncated at once");
  const ordered_json* reward = member(answer, "reward");
  // A step that says nothing of its reward is more likely a mistake than a reward of 0.
  if (reward == nullptr && kind == EnvironmentCall::Kind::kStep)
    unsound("answers step without a \"reward\" that is a finite number");
  if (reward != nullptr) result.reward = number_in(*reward, "the \"reward\"");
  result.metrics = metrics_of(answer);
  result.reason = text_member(answer, "reason").substr(0, kMostReasonBytes);
  if (!result.terminated && !result.truncated) return result;
  result.verifier = text_member(answer, "verifier");
  if (result.verifier.empty()) result.verifier = info.verifier;
  if (const ordered_json* evidence = member(answer, "evidence"))
    result.evidence = json_text(*evidence);
  if (result.evidence.size() > static_cast<size_t>(kMostEvidenceBytes))
    unsound("answers with an evidence of {} bytes; it may have {}", result.evidence.size(),
            kMostEvidenceBytes);
  if (!result.verifier.empty() && result.evidence.empty())
    unsound("ends an episode without \"evidence\", which {} scores", result.verifier);
  return result;
}

EnvironmentInfo info_of(const ordered_json& answer) {
  EnvironmentInfo info;
  info.name = text_member(answer, "name");
  const bool is_name = !info.name.empty() && info.name.size() <= kMostNameBytesOfInfo &&
                       info.name.find('.') == std::string::npos && is_name_of_metric(info.name);
  if (!is_name)
    unsound("answers info with the name '{}'; a name is of letters, digits, '_' and '-'",
            excerpt(info.name));
  info.vocabulary = texts_member(answer, "vocabulary");
  info.stop_strings = texts_member(answer, "stop_strings");
  info.max_turns = count_member(answer, "max_turns", info.max_turns);
  info.max_action_tokens = count_member(answer, "max_action_tokens", info.max_action_tokens);
  info.needs_dataset = flag_member(answer, "needs_dataset");
  info.verifier = text_member(answer, "verifier");
  return info;
}

// `read` makes the value of an object of these words.
template <class T, class Read>
Answered<T> answered(const std::string& line, const Words& words, const Read& read) {
  Answered<T> said;
  const ordered_json answer = parse_ordered_json(line);
  if (!answer.is_object()) {
    said.fault = no_object(line);
    return said;
  }
  try {
    if (const ordered_json* error = member(answer, "error")) {
      said.failure = Failure{
          .message = printable((error->is_string() ? error->get<std::string>() : json_text(*error))
                                   .substr(0, kMostReasonBytes)),
          .is_final = flag_member(answer, "final")};
    } else if (flag_member(answer, "unsupported")) {
      said.is_unsupported = true;
    } else {
      refuse_unknown(answer, words);
      said.value = read(answer);
    }
  } catch (const Unsound& found) {
    said.fault = found.why;
  }
  return said;
}

ordered_json setting_value(const std::string& text) {
  const ordered_json value = parse_ordered_json(text);
  return value.is_number() || value.is_boolean() ? value : ordered_json(text);
}

std::string random_line(const char* call, uint64_t random) {
  return json_text(ordered_json{{"call", call}, {"random", random}});
}

}  // namespace

std::string info_line(const EnvironmentSettings& settings) {
  ordered_json values = ordered_json::object();
  for (const auto& [name, text] : settings) values[name] = setting_value(text);
  return json_text(ordered_json{{"call", "info"}, {"settings", values}});
}

std::string call_line(const EnvironmentCall& call) {
  switch (call.kind) {
    case EnvironmentCall::Kind::kReset: {
      ordered_json row = parse_ordered_json(call.task.data);
      if (row.is_discarded()) row = nullptr;
      return json_text(ordered_json{{"call", "reset"}, {"seed", call.task.seed}, {"row", row}});
    }
    case EnvironmentCall::Kind::kStep:
      return json_text(ordered_json{{"call", "step"}, {"action", call.action}});
    case EnvironmentCall::Kind::kCut:
      break;
  }
  return json_text(ordered_json{{"call", "cut"}});
}

std::string close_line() { return json_text(ordered_json{{"call", "close"}}); }
std::string sample_line(uint64_t random) { return random_line("sample_action", random); }
std::string demonstrate_line(uint64_t random) { return random_line("demonstrate", random); }

Answered<EnvironmentInfo> read_info(const std::string& answer) {
  return answered<EnvironmentInfo>(answer, words_of_info(), info_of);
}

Answered<StepResult> read_step(EnvironmentCall::Kind kind, const std::string& answer,
                               const EnvironmentInfo& info) {
  return answered<StepResult>(answer, words_of_step(),
                              [&](const ordered_json& said) { return step_of(said, kind, info); });
}

Answered<std::string> read_action(const std::string& answer) {
  return answered<std::string>(answer, words_of_action(), [](const ordered_json& said) {
    std::string action = text_member(said, "action");
    if (action.size() > static_cast<size_t>(kMostObservationBytes))
      unsound("answers with an action of {} bytes; it may have {}", action.size(),
              kMostObservationBytes);
    return action;
  });
}

StepResult cut_by_player(const EnvironmentInfo& info) {
  StepResult result;
  result.truncated = true;
  result.verifier = info.verifier;
  result.reason = "a limit of the player's";
  return result;
}

}  // namespace tailrace::sandbox
