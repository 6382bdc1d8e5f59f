#include "cli/plan/lengths.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/run/counted.h"
#include "core/base/error.h"
#include "core/base/metrics.h"
#include "core/trajectory/trace_rows.h"

namespace tailrace {

namespace fs = std::filesystem;

int64_t sampled_tokens_of(const simulator::Episode& episode) {
  int64_t tokens = 0;
  for (const simulator::Turn& turn : episode.turns) tokens += turn.tokens;
  return tokens;
}

int64_t tokens_of(const simulator::Episode& episode) {
  int64_t tokens = episode.prompt_tokens + sampled_tokens_of(episode);
  for (const simulator::Turn& turn : episode.turns) tokens += turn.env_tokens;
  return tokens;
}

namespace {

// Turns are runs of sampled tokens. Only the first segment is read: a history that was rewritten
// is rare, and no length of it is lost to the sum of a step by much.
simulator::Episode episode_of(const TraceSegment& segment) {
  simulator::Episode episode;
  TokenRole before = TokenRole::kPrompt;
  for (const TokenRole role : segment.roles) {
    if (role == TokenRole::kSampled) {
      if (before != TokenRole::kSampled) episode.turns.push_back({.tokens = 0});
      ++episode.turns.back().tokens;
    } else if (episode.turns.empty()) {
      ++episode.prompt_tokens;
    } else {
      ++episode.turns.back().env_tokens;
    }
    before = role;
  }
  return episode;
}

std::vector<fs::path> trace_files(const RunPaths& run) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run.traces(), error))
    if (trace_file_step(entry.path())) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Of a step, the seconds that an episode of it waited for its environment, mean.
std::map<int64_t, double> environment_seconds(const RunPaths& run) {
  std::map<int64_t, double> seconds;
  const auto rows = read_metrics(run.metrics());
  if (!rows) return seconds;
  for (const MetricsRow& row : rows.value())
    if (const double* value = row.find("time/env")) seconds[row.step] = *value;
  return seconds;
}

void read_trace(const fs::path& file, std::vector<PlannedEpisode>& episodes) {
  std::ifstream in(file);
  std::string line;
  int64_t number = 0;
  while (std::getline(in, line)) {
    // The first row is about the file.
    if (++number == 1) continue;
    const auto row = parse_trace_row(line);
    if (!row) throw UserError("{}:{}: {}", file.string(), number, row.failure().message);
    if (row.value().segments.empty()) continue;
    PlannedEpisode planned{.member = row.value().lease.member,
                           .episode = episode_of(row.value().segments.front()),
                           .trained = row.value().advantage.has_value()};
    if (planned.episode.turns.empty()) continue;
    planned.episode.truncated = row.value().outcome == Outcome::kTruncated;
    planned.episode.reward = row.value().reward;
    episodes.push_back(std::move(planned));
  }
}

}  // namespace

PlannedEpisodes recorded_episodes(const RunPaths& run) {
  PlannedEpisodes known{.episodes = {}, .source = {}};
  int64_t steps = 0;
  const std::map<int64_t, double> waited = environment_seconds(run);
  for (const fs::path& file : trace_files(run)) {
    const size_t begin = known.episodes.size();
    read_trace(file, known.episodes);
    ++steps;
    const auto seconds = waited.find(*trace_file_step(file));
    if (seconds == waited.end()) continue;
    for (PlannedEpisode& planned : std::span(known.episodes).subspan(begin))
      for (simulator::Turn& turn : planned.episode.turns)
        turn.env_seconds = seconds->second / static_cast<double>(planned.episode.turns.size());
  }
  if (known.episodes.empty())
    throw UserError(
        "{} holds no traces of a step, so that no length is known. Name a run that has trained "
        "with train.trace_steps above 0.",
        run.root.string());
  known.source = fmt::format("{} of {} in {}", counted(std::ssize(known.episodes), "episode"),
                             counted(steps, "step"), run.root.string());
  return known;
}

PlannedEpisodes longest_episodes(const RunOptions& options, int64_t prompt_tokens) {
  const int64_t context = options.rollout.engine.max_context_tokens;
  const int64_t prompt = prompt_tokens > 0 ? std::min(prompt_tokens, context - 1) : context / 2;
  const int64_t answer =
      std::clamp<int64_t>(options.rollout.max_sampled_tokens(), 1, context - prompt);
  PlannedEpisodes longest{
      .episodes = {},
      .source = fmt::format("every answer at its limit, {} tokens behind a prompt of {}: the "
                            "longest step. --like RUN takes the lengths of a run",
                            answer, prompt)};
  for (int64_t p = 0; p < options.step.prompts_per_step; ++p)
    for (int64_t m = 0; m < options.step.group_size; ++m)
      longest.episodes.push_back(
          {.member = {.prompt = p, .member = static_cast<int32_t>(m)},
           .episode = {.prompt_tokens = prompt, .turns = {{.tokens = answer}}, .truncated = true}});
  return longest;
}

std::vector<std::vector<PlannedEpisode>> steps_of(const RunOptions& options,
                                                  const PlannedEpisodes& known) {
  std::vector<std::vector<const PlannedEpisode*>> groups;
  for (const PlannedEpisode& planned : known.episodes) {
    if (groups.empty() || task_of(groups.back().front()->member) != task_of(planned.member))
      groups.emplace_back();
    groups.back().push_back(&planned);
  }
  const int64_t prompts = options.step.prompts_per_step, num_groups = std::ssize(groups);
  std::vector<std::vector<PlannedEpisode>> steps;
  for (int64_t begin = 0; steps.empty() || begin + prompts <= num_groups; begin += prompts) {
    std::vector<PlannedEpisode>& step = steps.emplace_back();
    for (int64_t p = 0; p < prompts; ++p) {
      const auto& group = groups[static_cast<size_t>((begin + p) % num_groups)];
      for (int64_t m = 0; m < options.step.group_size; ++m) {
        PlannedEpisode planned = *group[static_cast<size_t>(m) % group.size()];
        planned.member.prompt = begin + p;
        planned.member.member = static_cast<int32_t>(m);
        step.push_back(std::move(planned));
      }
    }
  }
  return steps;
}

}  // namespace tailrace
