#include "cli/plan/predict.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cli/run/pools.h"

namespace tailrace {
namespace {

struct Running {
  const simulator::Episode* episode = nullptr;
  size_t turn = 0;
  int64_t left = 0;     // tokens of the turn
  int64_t context = 0;  // in KV
  int64_t unseen = 0;   // tokens that still go through the model
  double ready = 0;     // when the environment has answered
  double begun = 0;
};

}  // namespace

Played play_time(const simulator::Hardware& worker, double turn_seconds, int64_t max_sequences,
                 std::span<const PlannedEpisode> episodes) {
  std::vector<Running> running;
  for (size_t i = 0; i < episodes.size(); ++i) {
    const simulator::Episode& episode = episodes[i].episode;
    if (episode.turns.empty()) continue;
    // The prompt of a group is computed once.
    const bool shares = i > 0 && task_of(episodes[i].member) == task_of(episodes[i - 1].member);
    running.push_back({.episode = &episode,
                       .left = std::max<int64_t>(1, episode.turns.front().tokens),
                       .context = episode.prompt_tokens,
                       .unseen = shares ? 1 : episode.prompt_tokens,
                       .ready = episode.reset_seconds});
  }
  Played played;
  const double prefill = worker.prefill_tokens_per_s > 0 ? 1 / worker.prefill_tokens_per_s : 0;
  while (!running.empty()) {
    const size_t room = std::min(running.size(), static_cast<size_t>(max_sequences));
    double sequences = 0, context = 0, unseen = 0;
    double next = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < room; ++i) {
      const Running& r = running[i];
      if (r.ready > played.seconds) {
        next = std::min(next, r.ready);
        continue;
      }
      ++sequences;
      context += static_cast<double>(r.context);
      // The last of them is the row that a token is drawn from.
      unseen += static_cast<double>(std::max<int64_t>(0, r.unseen - 1));
    }
    if (sequences == 0) {
      played.waiting += next - played.seconds;
      played.seconds = next;
      continue;
    }
    const double begin = played.seconds;
    played.seconds += worker.decode.seconds(sequences, context) + unseen * prefill;
    size_t kept = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      Running r = running[i];
      bool over = false;
      if (i < room && r.ready <= begin) {
        ++r.context, r.unseen = 1;
        if (--r.left == 0) {
          const simulator::Turn& turn = r.episode->turns[r.turn];
          played.seconds += turn_seconds;
          r.ready = played.seconds + turn.env_seconds;
          over = ++r.turn == r.episode->turns.size();
          if (over) {
            played.sequence_seconds += played.seconds;
          } else {
            r.left = std::max<int64_t>(1, r.episode->turns[r.turn].tokens);
            r.unseen = 1 + turn.env_tokens;
            r.context += turn.env_tokens;
          }
        }
      }
      if (!over) running[kept++] = r;
    }
    running.resize(kept);
  }
  return played;
}

std::vector<std::vector<PlannedEpisode>> deal_groups(std::span<const PlannedEpisode> episodes,
                                                     int64_t workers) {
  std::vector<std::vector<PlannedEpisode>> dealt(static_cast<size_t>(workers));
  size_t to = 0;
  for (size_t i = 0; i < episodes.size(); ++i) {
    if (i > 0 && task_of(episodes[i].member) != task_of(episodes[i - 1].member))
      to = (to + 1) % dealt.size();
    dealt[to].push_back(episodes[i]);
  }
  return dealt;
}

StepTime predict_step(const RunOptions& options, const MachineCosts& costs,
                      std::span<const PlannedEpisode> step) {
  StepTime time;
  const int64_t workers = std::max<int64_t>(1, num_rollout_workers(options));
  double sequence_seconds = 0, verify = 0, places = 0;
  for (const auto& episodes : deal_groups(step, workers)) {
    const Played played =
        play_time(costs.worker, costs.turn_seconds, options.rollout.engine.max_sequences, episodes);
    if (played.seconds > time.generate) {
      time.generate = played.seconds;
      time.environment = played.waiting;
    }
    sequence_seconds += played.sequence_seconds;
    places += static_cast<double>(episodes.size());
  }
  double tokens = 0;
  for (const PlannedEpisode& planned : step) {
    time.sampled_tokens += static_cast<double>(sampled_tokens_of(planned.episode));
    if (planned.trained) tokens += static_cast<double>(tokens_of(planned.episode));
    verify += planned.episode.verify_seconds;
  }
  const auto samples = static_cast<double>(step.size());
  time.trained_tokens = tokens;
  time.idle_share =
      places * time.generate > 0 ? 1 - sequence_seconds / (places * time.generate) : 0;
  time.install = costs.transfer.fetch + costs.transfer.switch_over;
  time.beside = costs.beside_seconds;
  // Verified while others are played; behind the last sample comes at least its own.
  const auto scorers = static_cast<double>(std::max<int64_t>(1, options.reward.workers));
  if (samples > 0) time.reward = std::max(verify / samples, verify / scorers - time.generate);
  time.train = costs.train.step + costs.train.sample * samples + costs.train.token * tokens +
               costs.train.update;
  time.publish = costs.train.publish;
  const double rollout = time.install + time.generate + time.reward,
               training = time.beside + time.train + time.publish;
  // Groups ahead of the step hide the shorter of the two behind the longer one.
  time.step = options.scheduler.mode.mode().ahead.of(options.step.prompts_per_step) >=
                      options.step.prompts_per_step
                  ? std::max(rollout, training)
                  : rollout + training;
  return time;
}

StepTime mean(std::span<const StepTime> steps) {
  StepTime sum;
  constexpr double StepTime::*kParts[] = {
      &StepTime::install,    &StepTime::generate,       &StepTime::environment,   &StepTime::reward,
      &StepTime::train,      &StepTime::publish,        &StepTime::beside,        &StepTime::step,
      &StepTime::idle_share, &StepTime::sampled_tokens, &StepTime::trained_tokens};
  for (const auto part : kParts) {
    for (const StepTime& step : steps) sum.*part += step.*part;
    sum.*part /= static_cast<double>(steps.size());
  }
  return sum;
}

}  // namespace tailrace
