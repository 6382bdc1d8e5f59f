#include "cli/env/player.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using sandbox::StepResult;

template <class Call>
Result<StepResult> when_ready(Call&& call) {
  constexpr Time kPatience = std::chrono::minutes(1);
  const Time end = steady_now() + kPatience;
  while (true) {
    Result<StepResult> result = call();
    if (!result || !result.value().pending) return result;
    if (steady_now() > end)
      return Failure{fmt::format("it is still pending after {:.0f} s", seconds_of(kPatience))};
    // Pending says that somebody else works, who may need this core.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Enough of a text to recognise it, on one line.
std::string excerpt(const std::string& text) {
  constexpr size_t kMost = 60;
  std::string shown = printable(text.substr(0, kMost));
  for (size_t at; (at = shown.find('\n')) != std::string::npos;) shown.replace(at, 1, "\\n");
  return fmt::format("'{}{}'", shown, text.size() > kMost ? "..." : "");
}

std::optional<std::string> text_difference(const char* what, const std::string& a,
                                           const std::string& b) {
  if (a == b) return std::nullopt;
  return fmt::format("{} {} became {}", what, excerpt(a), excerpt(b));
}

// Also -0 and the bits of a NaN count.
bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

std::optional<std::string> observation_difference(const sandbox::Observation& a,
                                                  const sandbox::Observation& b) {
  if (auto found = text_difference("observation", a.text, b.text)) return found;
  if (auto found = text_difference("messages", a.messages, b.messages)) return found;
  if (auto found = text_difference("tools", a.tools, b.tools)) return found;
  return text_difference("state", a.state, b.state);
}

std::optional<std::string> metrics_difference(const MetricList& a, const MetricList& b) {
  if (a.size() != b.size()) return fmt::format("{} metrics became {}", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (auto found = text_difference("metric", a[i].first, b[i].first)) return found;
    if (!same_bits(a[i].second, b[i].second))
      return fmt::format("metric {} {} became {}", a[i].first, a[i].second, b[i].second);
  }
  return std::nullopt;
}

std::string ending_of(const StepResult& step) {
  return step.terminated ? "terminated" : step.truncated ? "truncated" : "running";
}

std::optional<std::string> step_difference(const StepResult& a, const StepResult& b) {
  if (auto found = observation_difference(a.observation, b.observation)) return found;
  if (!same_bits(a.reward, b.reward)) return fmt::format("reward {} became {}", a.reward, b.reward);
  if (auto found = text_difference("ending", ending_of(a), ending_of(b))) return found;
  if (auto found = text_difference("reward's name", a.verifier, b.verifier)) return found;
  if (auto found = text_difference("evidence", a.evidence, b.evidence)) return found;
  return metrics_difference(a.metrics, b.metrics);
}

}  // namespace

double PlayedEpisode::reward() const {
  double sum = 0;
  for (const StepResult& step : steps) sum += step.reward;
  return sum;
}

std::optional<std::string> difference(const PlayedEpisode& before, const PlayedEpisode& after) {
  if (auto found = observation_difference(before.first, after.first)) return "the first " + *found;
  for (size_t i = 0; i < std::min(before.steps.size(), after.steps.size()); ++i)
    if (auto found = step_difference(before.steps[i], after.steps[i]))
      return fmt::format("turn {}: {}", i + 1, *found);
  if (before.steps.size() != after.steps.size())
    return fmt::format("{} turns became {}", before.steps.size(), after.steps.size());
  return std::nullopt;
}

Result<void> EpisodePlayer::begin(const sandbox::Task& task) {
  played_ = {};
  done_ = false;
  Result<sandbox::Observation> first = environment_.reset(task);
  if (!first) return Failure{"reset() fails: " + first.failure().message};
  played_.first = std::move(first).value();
  return {};
}

Result<void> EpisodePlayer::turn(const std::string& action) {
  played_.actions.push_back(action);
  if (auto taken = take(step_when_ready(environment_, action)); !taken) return taken;
  // As the episode of a run ends (Episode::stepped()): its limit of turns is the environment's own
  // where the config has none.
  if (!done_ && static_cast<int64_t>(played_.actions.size()) >= environment_.info().max_turns)
    return cut();
  return {};
}

Result<void> EpisodePlayer::cut() {
  played_.is_cut = true;
  if (auto taken = take(cut_when_ready(environment_)); !taken) return taken;
  if (!done_) return Failure{"cut() does not end the episode"};
  return {};
}

Result<void> EpisodePlayer::take(Result<StepResult> result) {
  if (!result)
    return Failure{fmt::format("{} fails in turn {}: {}", played_.is_cut ? "cut()" : "step()",
                               played_.actions.size(), result.failure().message)};
  done_ = result.value().terminated || result.value().truncated;
  played_.steps.push_back(std::move(result).value());
  return {};
}

Result<StepResult> step_when_ready(sandbox::Environment& environment, const std::string& action) {
  return when_ready([&] { return environment.step(action); });
}

Result<StepResult> cut_when_ready(sandbox::Environment& environment) {
  return when_ready([&] { return environment.cut(); });
}

Result<PlayedEpisode> play_episode(sandbox::Environment& environment, const sandbox::Task& task,
                                   const NextAction& next) {
  EpisodePlayer player(environment);
  if (auto begun = player.begin(task); !begun) return begun.failure();
  for (int64_t turn = 0; !player.is_done(); ++turn)
    if (auto taken = player.turn(next(turn)); !taken) return taken.failure();
  return player.played();
}

}  // namespace tailrace
