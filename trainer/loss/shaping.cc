#include "trainer/loss/shaping.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

double soft_overlong(const LengthOptions& o, int64_t length) {
  TR_CHECK(o.buffer > 0 && o.buffer <= o.limit, "buffer {} of {}", o.buffer, o.limit);
  const auto over = static_cast<double>(length - (o.limit - o.buffer));
  // No further than at the limit, where episodes end: a longer one is an accident of its last turn.
  return -o.factor * std::clamp(over / static_cast<double>(o.buffer), 0.0, 1.0);
}

}  // namespace

std::vector<double> length_penalties(const LengthOptions& options, std::span<const int64_t> lengths,
                                     std::span<const uint8_t> success,
                                     std::span<const int32_t> group_offsets) {
  TR_CHECK(lengths.size() == success.size());
  std::vector<double> penalties(lengths.size(), 0.0);
  if (options.penalty == LengthPenalty::kSoftOverlong)
    for (size_t i = 0; i < lengths.size(); ++i) penalties[i] = soft_overlong(options, lengths[i]);
  if (options.penalty != LengthPenalty::kKimi) return penalties;
  for (size_t g = 0; g + 1 < group_offsets.size(); ++g) {
    const auto begin = static_cast<size_t>(group_offsets[g]),
               end = static_cast<size_t>(group_offsets[g + 1]);
    const auto [low, high] = std::ranges::minmax(lengths.subspan(begin, end - begin));
    if (low == high) continue;
    for (size_t i = begin; i < end; ++i) {
      // Kimi k1.5: 0.5 for the shortest of the group to -0.5 for the longest; failures are never
      // rewarded for being short.
      const double lambda =
          0.5 - static_cast<double>(lengths[i] - low) / static_cast<double>(high - low);
      penalties[i] = options.factor * (success[i] != 0 ? lambda : std::min(0.0, lambda));
    }
  }
  return penalties;
}

void LengthOptions::visit(OptionVisitor& v) {
  const bool soft = penalty == LengthPenalty::kSoftOverlong;
  const auto idle = [&](bool reads) {
    return idle_if(!reads, fmt::format("{{penalty}} is {}", name_of(penalty)), {"penalty"});
  };
  v.field("penalty", penalty,
          {.help = "added to the reward for advantages alone. soft_overlong: from 0 at limit - "
                   "buffer to -factor at the limit; kimi: by length within the group, for failures "
                   "never above 0"});
  v.field("factor", factor,
          {.help = "what the penalty of the longest takes (soft_overlong), or twice that (kimi)",
           .min = 0,
           .max = 1000,
           .idle = idle(penalty != LengthPenalty::kNone)});
  v.field("limit", limit,
          {.help = "sampled tokens of an episode; 0: the most that it can sample (soft_overlong)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(soft)});
  v.field("buffer", buffer,
          {.help = "tokens in front of the limit; 0: a fifth of it, as DAPO has it (soft_overlong)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(soft)});
}

void validate(const LengthOptions& o, std::string_view section) {
  if (o.penalty != LengthPenalty::kSoftOverlong) return;
  if (o.limit < 1)
    throw UserError::at(join_key(section, "limit"),
                        "is {}; the penalty is full there. Try the response limit.", o.limit);
  if (o.buffer < 1 || o.buffer > o.limit)
    throw UserError::at(join_key(section, "buffer"),
                        "is {}; it is part of the {} tokens of {}. Try {}.", o.buffer, o.limit,
                        join_key(section, "limit"), std::max<int64_t>(1, o.limit / 5));
}

}  // namespace tailrace
