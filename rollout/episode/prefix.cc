#include "rollout/episode/prefix.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/trajectory/body_limits.h"

namespace tailrace {
namespace {

// Each worker adds one at most, and a message names 64: far more than a run has kinds of machines.
constexpr int64_t kMaxClasses = 32;

// A prefix comes over the wire, perhaps of an older config. Tokens that this episode could not have
// sampled would be trained as its own, so all that shaped them is compared.
std::optional<std::string> find_other_episode(const Trajectory& prefix, const EpisodeSpec& spec,
                                              std::string_view env) {
  if (prefix.lease.member != spec.lease.member || prefix.lane != spec.lane)
    return fmt::format("is of {} lane={}", to_string(prefix.lease), name_of(prefix.lane));
  if (prefix.env != env) return fmt::format("was played in {}, not in {}", prefix.env, env);
  if (prefix.seed != spec.task.seed)
    return fmt::format("began with the seed {}, not {}", prefix.seed, spec.task.seed);
  // find_unfit() compares the distribution.
  const SamplingParams& sampling = prefix.sampling;
  if (sampling.stop_strings != spec.sampling.stop_strings ||
      sampling.stop_tokens != spec.sampling.stop_tokens ||
      sampling.max_new_tokens != spec.limits.max_action_tokens)
    return "had answers that ended otherwise";
  return std::nullopt;
}

// One segment: a prompt, then answers with observations behind them.
std::optional<std::string> find_other_form(const Trajectory& prefix) {
  if (prefix.outcome != Outcome::kAborted || prefix.reward || !prefix.verifier.empty())
    return fmt::format("is over: {}", name_of(prefix.outcome));
  if (prefix.segments.size() != 1 || prefix.segments[0].parent >= 0)
    return fmt::format("has {} segments", prefix.segments.size());
  const Segment& segment = prefix.segments[0];
  if (prefix.turns < 1 || prefix.turns != std::ssize(segment.turn_begins))
    return fmt::format("has {} answers in {} turns", segment.turn_begins.size(), prefix.turns);
  for (size_t i = 0; i < segment.roles.size(); ++i) {
    const bool in_front = std::cmp_less(i, segment.turn_begins[0]);
    if (in_front != (segment.roles[i] == TokenRole::kPrompt))
      return fmt::format("has its prompt elsewhere, at token {}", i);
  }
  if (std::ssize(prefix.numerics_classes) > kMaxClasses)
    return fmt::format("names {} numerics classes", prefix.numerics_classes.size());
  if (!std::isfinite(prefix.env_seconds + prefix.generate_seconds)) return "took for ever";
  return std::nullopt;
}

int64_t longest_answer(const Segment& segment) {
  int64_t longest = 0;
  for (size_t turn = 0; turn < segment.turn_begins.size(); ++turn) {
    const bool last = turn + 1 == segment.turn_begins.size();
    const auto begin = segment.roles.begin() + segment.turn_begins[turn];
    const auto end =
        last ? segment.roles.end() : segment.roles.begin() + segment.turn_begins[turn + 1];
    longest = std::max(longest, std::count(begin, end, TokenRole::kSampled));
  }
  return longest;
}

// Why a prefix of the right form is beyond the limits.
std::optional<std::string> find_beyond(const Trajectory& prefix, const EpisodeLimits& limits) {
  const Segment& segment = prefix.segments[0];
  const int64_t prompt = segment.turn_begins[0], tokens = std::ssize(segment.tokens);
  if (prefix.turns >= limits.max_turns)
    return fmt::format("has {} turns of {}", prefix.turns, limits.max_turns);
  if (longest_answer(segment) > limits.max_action_tokens)
    return fmt::format("has an answer of {} tokens", longest_answer(segment));
  // One token must be sampled behind it.
  if (prompt < 1 || prompt > limits.max_prompt_tokens || tokens >= limits.max_context_tokens ||
      tokens - prompt >= limits.max_response_tokens)
    return fmt::format("leaves no room: {} tokens with a prompt of {}", tokens, prompt);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_misfit(const Trajectory& prefix, const EpisodeSpec& spec,
                                       std::string_view env, int64_t vocab_size) {
  if (auto misfit = find_other_episode(prefix, spec, env)) return misfit;
  if (auto misfit = find_other_form(prefix)) return misfit;
  if (auto misfit = find_beyond(prefix, spec.limits)) return misfit;
  // An episode has a set for each of its tokens or for none.
  if (!spec.keeps_sets && !prefix.segments[0].kept_counts.empty())
    return "says what its tokens were drawn from, which this run does not keep";
  return find_unfit(prefix, {.vocab_size = vocab_size,
                             .max_context_tokens = spec.limits.max_context_tokens,
                             .needs_sets = spec.keeps_sets,
                             .experts = spec.experts,
                             .sampling = spec.sampling});
}

}  // namespace tailrace
