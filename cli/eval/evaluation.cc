#include "cli/eval/evaluation.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "reward/judge.h"
#include "reward/registry.h"
#include "rollout/engine/engine.h"
#include "rollout/episode/task_source.h"
#include "rollout/player/player.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

// Episodes in play at once: enough to fill the engine's batches, few enough to keep environments
// cheap.
constexpr int64_t kInPlay = 128;
constexpr std::chrono::milliseconds kPatience{50};  // for an environment

// The answer is what was sampled, and the prompt all before it.
void keep_tokens(const Segment& segment, EvaluatedEpisode& episode) {
  const auto begin = std::ranges::find(segment.roles, TokenRole::kSampled) - segment.roles.begin();
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    if (static_cast<std::ptrdiff_t>(i) < begin)
      episode.prompt_ids.push_back(segment.tokens[i]);
    else if (segment.roles[i] == TokenRole::kSampled)
      episode.answer_ids.push_back(segment.tokens[i]);
  }
}

EvaluatedEpisode score(const FinishedEpisode& finished, const EvaluationPlan& plan,
                       const VerifierRegistry& verifiers) {
  const Trajectory& trajectory = finished.trajectory;
  EvaluatedEpisode episode{.prompt = trajectory.lease.member.prompt,
                           .sample = trajectory.lease.member.member,
                           .failure = finished.failure,
                           .turns = trajectory.turns,
                           .sampled_tokens = trajectory.num_sampled(),
                           .truncated = trajectory.outcome == Outcome::kTruncated,
                           .metrics = trajectory.metrics};
  bool played =
      trajectory.outcome == Outcome::kFinished || trajectory.outcome == Outcome::kTruncated;
  bool scored = trajectory.reward.has_value();
  episode.reward = trajectory.reward.value_or(0);
  if (played && !trajectory.verifier.empty()) {
    const Result<Score> judged =
        judge(verifiers, trajectory.verifier, trajectory.evidence, plan.score_budget);
    scored = judged.ok();
    episode.reward = scored ? judged.value().reward : 0;
    if (scored) {
      const MetricList& more = judged.value().metrics;
      episode.metrics.insert(episode.metrics.end(), more.begin(), more.end());
    } else {
      episode.failure = judged.failure().message;
    }
  }
  episode.failed = !played || !scored;
  if (plan.keeps_tokens && trajectory.turns == 1 && trajectory.segments.size() == 1)
    keep_tokens(trajectory.segments.front(), episode);
  // An environment's or a verifier's own word on success comes before the threshold.
  episode.success = episode.reward >= plan.success_reward;
  for (const auto& [name, value] : episode.metrics)
    if (name == "success") episode.success = value > 0;
  return episode;
}

}  // namespace

std::vector<EvaluatedEpisode> evaluate(const LoadedModel& loaded, const chat::PromptFormat& format,
                                       const EvaluationPlan& plan, const Registries& registries,
                                       const std::function<void(const std::string&)>& note) {
  const auto source = registries.environments.source(plan.env, plan.settings);
  const sandbox::EnvironmentInfo& info = source->info();
  // Before anything is played: judge() would fail every single episode.
  if (!info.verifier.empty()) registries.verifiers->at(info.verifier);
  // A word-level tokenizer names the word that it lacks.
  for (const std::string& word : info.vocabulary) (void)format.tokenizer().encode(word);

  SteadyClock clock;
  EngineOptions engine_options = plan.rollout.engine;
  Engine engine(loaded.model(), &format.tokenizer(), engine_options, loaded.stream(), clock);
  engine.install(loaded.shared_weights(), 0);
  EpisodeLimits limits = episode_limits(plan.rollout, info);
  SamplingParams sampling = episode_sampling(plan.rollout.sampling, info, loaded.config(), format);
  // Lane, prompt and member decide task and random numbers, as in a run: `--run` repeats its
  // evaluation.
  const Lane lane = plan.held_out ? Lane::kEval : Lane::kTrain;
  const TaskSource tasks(plan.seed, plan.dataset);
  const auto agent = source->agent();
  Player player(engine, format,
                {.runner = runner_settings(plan.rollout),
                 .max_request_bytes = agent == nullptr ? 0 : agent->max_request_bytes,
                 .agents_folder = std::filesystem::temp_directory_path() /
                                  fmt::format("tailrace-eval-{}", ::getpid())},
                clock);
  const auto tell_notes = [&](bool is_end) {
    for (const std::string& line : player.take_notes(is_end)) note(line);
  };

  std::vector<EvaluatedEpisode> episodes;
  int64_t total = plan.episodes * plan.samples, started = 0;
  while (static_cast<int64_t>(episodes.size()) < total) {
    // Always the next in order, so that prompts with all their samples share a KV prefix while they
    // are played.
    for (; started < total && started - std::ssize(episodes) < kInPlay; ++started) {
      const MemberId member{.dataset = plan.dataset_index,
                            .prompt = started / plan.samples,
                            .member = static_cast<int32_t>(started % plan.samples)};
      player.start({.lease = {.member = member},
                    .lane = lane,
                    .task = tasks.task(lane, member),
                    .key = member_key(plan.seed, lane, member),
                    .sampling = sampling,
                    .limits = limits},
                   source);
    }
    for (const FinishedEpisode& finished : player.poll(kPatience))
      episodes.push_back(score(finished, plan, *registries.verifiers));
    tell_notes(/*is_end=*/false);
  }
  tell_notes(/*is_end=*/true);
  // They ended in any order; sums below must not depend on it.
  std::sort(episodes.begin(), episodes.end(),
            [](const EvaluatedEpisode& a, const EvaluatedEpisode& b) {
              return std::pair(a.prompt, a.sample) < std::pair(b.prompt, b.sample);
            });
  return episodes;
}

EvaluationSummary summarise(const std::vector<EvaluatedEpisode>& episodes,
                            const std::vector<int64_t>& ks, uint64_t seed) {
  struct PerPrompt {
    int64_t samples = 0, successes = 0;
    double reward = 0;
  };
  EvaluationSummary summary;
  std::map<int64_t, PerPrompt> prompts;
  std::map<std::string, std::pair<double, int64_t>> metrics;
  for (const EvaluatedEpisode& episode : episodes) {
    ++summary.episodes;
    if (episode.failed) {
      if (++summary.failed == 1) summary.failure = episode.failure;
      continue;
    }
    PerPrompt& prompt = prompts[episode.prompt];
    ++prompt.samples;
    prompt.successes += episode.success;
    prompt.reward += episode.reward;
    summary.mean_turns += static_cast<double>(episode.turns);
    summary.mean_sampled_tokens += static_cast<double>(episode.sampled_tokens);
    summary.truncated_share += episode.truncated;
    for (const auto& [name, value] : episode.metrics) {
      metrics[name].first += value;
      ++metrics[name].second;
    }
  }
  summary.prompts = static_cast<int64_t>(prompts.size());
  if (prompts.empty()) return summary;
  auto scored = static_cast<double>(summary.episodes - summary.failed);
  summary.mean_turns /= scored;
  summary.mean_sampled_tokens /= scored;
  summary.truncated_share /= scored;
  for (const auto& [name, sum] : metrics)
    summary.metrics.emplace_back(name, sum.first / static_cast<double>(sum.second));

  // Samples of one prompt are not independent of each other: prompts are resampled, not episodes.
  // "boot": its own random numbers.
  Rng rng(mix({seed, 0x626f6f74}));
  std::vector<double> rewards, successes;
  for (const auto& [id, prompt] : prompts) {
    rewards.push_back(prompt.reward / static_cast<double>(prompt.samples));
    successes.push_back(static_cast<double>(prompt.successes) /
                        static_cast<double>(prompt.samples));
  }
  summary.reward = bootstrap_mean(rewards, rng);
  summary.success = mean_share(successes, rng);
  for (int64_t k : ks) {
    std::vector<double> values;
    // Failed samples may have left a prompt with fewer.
    for (const auto& [id, prompt] : prompts)
      if (prompt.samples >= k) values.push_back(pass_at_k(prompt.samples, prompt.successes, k));
    if (!values.empty()) summary.pass_at_k.emplace_back(k, mean_share(values, rng));
  }
  return summary;
}

}  // namespace tailrace
