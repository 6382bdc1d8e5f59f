#include "core/trajectory/body_limits.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <fmt/format.h>

namespace tailrace {
namespace {

bool samples(const Segment& segment) {
  return std::ranges::find(segment.roles, TokenRole::kSampled) != segment.roles.end();
}

// Differences of float numbers as large as the scaled logits, which may round to above 0.
double slack_of(const SamplingParams& sampling) {
  return 1e-3 / (sampling.temperature > 0 ? std::min(1.0, sampling.temperature) : 1.0);
}

std::optional<std::string> find_lie(const Segment& segment, double slack) {
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    const float logprob = segment.logprobs[i];
    // A probability above 1 is a lie or a fault, and would give the token a ratio of its liking.
    if (logprob > slack)
      return fmt::format("says of token {} that its log-probability is {}", i, logprob);
    const float log_mass = segment.log_masses.empty() ? 0 : segment.log_masses[i];
    if (logprob - log_mass > slack)
      return fmt::format(
          "says of token {} that its log-probability is {}, and {} of all that was kept", i,
          logprob, log_mass);
  }
  return std::nullopt;
}

bool same_distribution(const SamplingParams& a, const SamplingParams& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p &&
         a.min_p == b.min_p;
}

std::string text_of(const ExpertShape& shape) {
  return fmt::format("{} of {} experts in {} layers", shape.chosen, shape.experts,
                     shape.sparse_layers);
}

std::string distribution_of(const SamplingParams& s) {
  return fmt::format("temperature {}, top_k {}, top_p {}, min_p {}", s.temperature, s.top_k,
                     s.top_p, s.min_p);
}

}  // namespace

std::optional<std::string> find_unfit(const Trajectory& trajectory, const BodyLimits& limits) {
  // First: what follows is judged by them.
  std::optional<SamplingParams> sampling = trajectory.lane == Lane::kEval && limits.eval_sampling
                                               ? limits.eval_sampling
                                               : limits.sampling;
  if (sampling && limits.greedy_member &&
      is_greedy_member(trajectory.lane, trajectory.lease.member))
    sampling->temperature = 0;
  if (sampling && !same_distribution(trajectory.sampling, *sampling))
    return fmt::format("was sampled with {}; the run says {}", distribution_of(trajectory.sampling),
                       distribution_of(*sampling));
  if (std::ssize(trajectory.segments) > limits.max_segments)
    return fmt::format("has {} segments; its turns allow {}", trajectory.segments.size(),
                       limits.max_segments);
  const double slack = slack_of(trajectory.sampling);
  // An evaluation keeps no sets: nobody trains on it.
  const bool needs_sets = limits.needs_sets && trajectory.lane == Lane::kTrain &&
                          truncates(trajectory.sampling, limits.vocab_size);
  // The same of choices.
  const ExpertShape& given = trajectory.experts;
  const ExpertShape experts =
      trajectory.lane == Lane::kTrain ? limits.experts.value_or(given) : ExpertShape{};
  // Ids that fit another shape would be read as other experts, without a word.
  if (limits.experts && given != ExpertShape{} && given != experts)
    return fmt::format("has choices of {}{}", text_of(given),
                       experts == ExpertShape{} ? ", which nobody here records"
                                                : "; the run's are of " + text_of(experts));
  for (const Segment& segment : trajectory.segments) {
    if (segment.tokens.empty()) return "has a segment without tokens";
    const int64_t context = segment.parent_tokens + std::ssize(segment.tokens);
    if (context > limits.max_context_tokens)
      return fmt::format("has a context of {} tokens; the trainer takes {}", context,
                         limits.max_context_tokens);
    for (const std::vector<TokenId>& ids : {std::cref(segment.tokens), std::cref(segment.kept_ids)})
      for (TokenId id : ids) {
        if (id < 0 || id >= limits.vocab_size)
          return fmt::format("holds token {}; the vocabulary has {}", id, limits.vocab_size);
      }
    // Where there are sets, each sampled token has one: find_fault() has seen to it.
    if (needs_sets && segment.kept_counts.empty() && samples(segment))
      return "does not say what its tokens were drawn from; algo.sampling_mask = keep needs it of "
             "truncated sampling";
    if (limits.experts &&
        std::ssize(segment.choices) < num_drawn_from(segment) * experts.per_token())
      return "does not say which experts its tokens went to; algo.router_replay = replay needs it";
    if (auto lie = find_lie(segment, slack)) return lie;
  }
  return std::nullopt;
}

}  // namespace tailrace
