#include "trainer/loss/shaping.h"

#include <algorithm>

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
      const double lambda =
          0.5 - static_cast<double>(lengths[i] - low) / static_cast<double>(high - low);
      penalties[i] = options.factor * (success[i] != 0 ? lambda : std::min(0.0, lambda));
    }
  }
  return penalties;
}

}  // namespace tailrace
