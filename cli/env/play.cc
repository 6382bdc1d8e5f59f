#include "cli/env/play.h"

#include <cmath>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/env/player.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

void write_observation(const sandbox::Observation& observation, std::ostream& out) {
  const std::string& text = observation.messages.empty() ? observation.text : observation.messages;
  out << printable(text);
  if (!text.empty() && text.back() != '\n') out << '\n';
  if (!observation.tools.empty()) out << "tools: " << printable(observation.tools) << '\n';
}

void write_metrics(const MetricList& metrics, std::ostream& out) {
  for (const auto& [name, value] : metrics)
    out << fmt::format("{}: {:.6g}\n", printable(name), value);
}

struct Scored {
  std::optional<double> reward;  // none: there is no verdict
  std::string by, why;           // who scored it; why there is none
  MetricList metrics;
};

Scored score(const PlayedEpisode& episode, const VerifierRegistry& verifiers) {
  const sandbox::StepResult& end = episode.end();
  if (end.verifier.empty()) return {episode.reward(), "", "", end.metrics};
  Scored scored{.reward = {}, .by = end.verifier, .why = {}, .metrics = end.metrics};
  const auto verdict = judge(verifiers, end.verifier, end.evidence, kScoreBudget);
  if (verdict) {
    scored.reward = verdict.value().reward;
    scored.metrics.insert(scored.metrics.end(), verdict.value().metrics.begin(),
                          verdict.value().metrics.end());
  } else {
    scored.why = verdict.failure().message;
  }
  return scored;
}

// "ended", or why not.
std::string ending(const PlayedEpisode& episode, bool at_end_of_input) {
  const sandbox::StepResult& end = episode.end();
  if (end.terminated) return "ended";
  if (at_end_of_input) return "cut";
  if (!end.reason.empty()) return fmt::format("truncated ({})", printable(end.reason));
  return episode.is_cut ? "cut" : "truncated";
}

void write_end(const PlayedEpisode& episode, const std::string& how, const Scored& scored,
               std::ostream& out) {
  write_observation(episode.end().observation, out);
  out << fmt::format("{} after {} turn{}\n", how, episode.actions.size(),
                     episode.actions.size() == 1 ? "" : "s");
  if (scored.reward)
    out << fmt::format("reward: {:.6g}{}\n", *scored.reward,
                       scored.by.empty() ? "" : ", of " + scored.by);
  write_metrics(scored.metrics, out);
}

void write_json(const PlayedEpisode& episode, const std::string& how, const Scored& scored,
                std::ostream& out) {
  const auto heard = [](const sandbox::Observation& observation) {
    return observation.messages.empty() ? observation.text : observation.messages;
  };
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  for (size_t i = 0; i < episode.actions.size() && i < episode.steps.size(); ++i)
    turns.push_back({{"action", episode.actions[i]},
                     {"observation", heard(episode.steps[i].observation)},
                     {"reward", episode.steps[i].reward}});
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  for (const auto& [name, value] : scored.metrics) metrics[name] = value;
  out << json_text(nlohmann::ordered_json{
             {"observation", heard(episode.first)},
             {"turns", std::move(turns)},
             {"end", how},
             {"reward",
              scored.reward ? nlohmann::ordered_json(*scored.reward) : nlohmann::ordered_json()},
             {"scored_by", scored.by.empty() ? "itself" : scored.by},
             {"metrics", std::move(metrics)}})
      << '\n';
}

std::optional<Failure> fault_of(const sandbox::StepResult& step) {
  if (!std::isfinite(step.reward))
    return Failure{fmt::format("the reward is {}; a run refuses it", step.reward)};
  for (const auto& [name, value] : step.metrics)
    if (!std::isfinite(value))
      return Failure{fmt::format("the metric {} is {}; a run refuses it", name, value)};
  return std::nullopt;
}

}  // namespace

Result<void> play_by_hand(sandbox::Environment& environment, const sandbox::Task& task,
                          const VerifierRegistry& verifiers, std::istream& in, std::ostream& out,
                          PlayedAs as) {
  const auto& stops = environment.info().stop_strings;
  const bool talks = as == PlayedAs::kText;
  EpisodePlayer player(environment);
  if (auto begun = player.begin(task); !begun) return begun;
  if (talks) write_observation(player.played().first, out);
  bool at_end_of_input = false;
  while (!player.is_done()) {
    if (talks) out << "> " << std::flush;
    std::string line;
    if (!std::getline(in, line)) {
      if (talks) out << '\n';
      at_end_of_input = true;
      if (auto ended = player.cut(); !ended) return ended;
      break;
    }
    // The action of a policy ends with the stop string that it sampled, and environments look for
    // it.
    if (!stops.empty()) line += stops.front();
    if (auto taken = player.turn(line); !taken) return taken;
    if (auto fault = fault_of(player.played().steps.back())) return *fault;
    if (talks && !player.is_done())
      write_observation(player.played().steps.back().observation, out);
  }
  const Scored scored = score(player.played(), verifiers);
  const std::string how = ending(player.played(), at_end_of_input);
  if (talks) {
    write_end(player.played(), how, scored, out);
  } else {
    write_json(player.played(), how, scored, out);
  }
  if (!scored.reward) return Failure{"no reward: " + scored.why};
  return {};
}

}  // namespace tailrace
