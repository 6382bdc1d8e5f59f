#include "cli/env/play.h"

#include <istream>
#include <ostream>
#include <string>

#include <fmt/format.h>

#include "cli/env/player.h"
#include "core/text/utf8.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

void write_observation(const sandbox::Observation& observation, std::ostream& out) {
  const std::string& text = observation.messages.empty() ? observation.text : observation.messages;
  out << text::printable(text);
  if (!text.empty() && text.back() != '\n') out << '\n';
  if (!observation.tools.empty()) out << "tools: " << text::printable(observation.tools) << '\n';
}

void write_metrics(const MetricList& metrics, std::ostream& out) {
  for (const auto& [name, value] : metrics)
    out << fmt::format("{}: {:.6g}\n", text::printable(name), value);
}

Result<void> write_end(const PlayedEpisode& episode, const VerifierRegistry& verifiers,
                       std::ostream& out) {
  const sandbox::StepResult& end = episode.end();
  write_observation(end.observation, out);
  out << fmt::format("{} after {} turn{}\n", end.terminated ? "ended" : "cut",
                     episode.actions.size(), episode.actions.size() == 1 ? "" : "s");
  if (end.verifier.empty()) {
    out << fmt::format("reward: {:.6g}\n", episode.reward());
    write_metrics(end.metrics, out);
    return {};
  }
  write_metrics(end.metrics, out);
  const auto score = judge(verifiers, end.verifier, end.evidence, kScoreBudget);
  if (!score) return Failure{"no reward: " + score.failure().message};
  out << fmt::format("reward: {:.6g}, of {}\n", score.value().reward, end.verifier);
  write_metrics(score.value().metrics, out);
  return {};
}

}  // namespace

Result<void> play_by_hand(sandbox::Environment& environment, const sandbox::Task& task,
                          const VerifierRegistry& verifiers, std::istream& in, std::ostream& out) {
  const auto& stops = environment.info().stop_strings;
  EpisodePlayer player(environment);
  if (auto begun = player.begin(task); !begun) return begun;
  write_observation(player.played().first, out);
  while (!player.is_done()) {
    out << "> " << std::flush;
    std::string line;
    if (!std::getline(in, line)) {
      out << '\n';
      if (auto ended = player.cut(); !ended) return ended;
      break;
    }
    if (!stops.empty()) line += stops.front();
    if (auto taken = player.turn(line); !taken) return taken;
    if (!player.is_done()) write_observation(player.played().steps.back().observation, out);
  }
  return write_end(player.played(), verifiers, out);
}

}  // namespace tailrace
