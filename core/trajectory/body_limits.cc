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

}  // namespace

std::optional<std::string> find_unfit(const Trajectory& trajectory, const BodyLimits& limits) {
  // An evaluation keeps no sets: nobody trains on it.
  const bool needs_sets = limits.needs_sets && trajectory.lane == Lane::kTrain &&
                          truncates(trajectory.sampling, limits.vocab_size);
  for (const Segment& segment : trajectory.segments) {
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
  }
  return std::nullopt;
}

}  // namespace tailrace
