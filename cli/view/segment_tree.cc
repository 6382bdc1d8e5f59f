#include "cli/view/segment_tree.h"

#include <utility>

#include <fmt/format.h>

namespace tailrace {
namespace {

// The turn of each token of each segment; 0: it was said.
using Turns = std::vector<std::vector<int64_t>>;

Turns number_turns(std::span<const SegmentShape> segments) {
  Turns turns;
  int64_t last = 0;
  for (const SegmentShape& segment : segments) {
    std::vector<int64_t>& own = turns.emplace_back();
    for (size_t i = 0; i < segment.roles.size(); ++i) {
      const bool is_sampled = segment.roles[i] == TokenRole::kSampled;
      const bool goes_on = i > 0 && segment.roles[i - 1] == TokenRole::kSampled;
      if (is_sampled && !goes_on) ++last;
      own.push_back(is_sampled ? last : 0);
    }
  }
  return turns;
}

// The turn of the token at a place of the context of a segment; 0 behind its end too.
int64_t turn_at(std::span<const SegmentShape> segments, const Turns& turns, int32_t segment,
                int32_t place) {
  // A segment holds what is behind the tokens that it continues; those in front of them are in one
  // of its parents.
  while (place < segments[static_cast<size_t>(segment)].parent_tokens)
    segment = segments[static_cast<size_t>(segment)].parent;
  const auto own = static_cast<size_t>(place) -
                   static_cast<size_t>(segments[static_cast<size_t>(segment)].parent_tokens);
  const std::vector<int64_t>& list = turns[static_cast<size_t>(segment)];
  return own < list.size() ? list[own] : 0;
}

std::string whence(std::span<const SegmentShape> segments, const Turns& turns, size_t index) {
  const auto [parent, place, roles] = segments[index];
  if (parent < 0) return index == 0 ? "begins" : "begins anew";
  const int64_t before = place == 0 ? 0 : turn_at(segments, turns, parent, place - 1);
  const int64_t next = turn_at(segments, turns, parent, place);
  if (before != 0 && before != next) return fmt::format("goes on behind turn {}", before);
  if (before != 0) return fmt::format("goes on within turn {}", before);
  if (next != 0 && !roles.empty() && roles.front() == TokenRole::kSampled)
    return fmt::format("answers again what turn {} answers", next);
  return fmt::format("goes on behind token {} of segment {}", place, parent);
}

std::string whose(const std::vector<int64_t>& turns) {
  int64_t first = 0, last = 0;
  for (const int64_t turn : turns) {
    if (turn != 0 && first == 0) first = turn;
    if (turn != 0) last = turn;
  }
  if (first == 0) return "no turn";
  return first == last ? fmt::format("turn {}", first) : fmt::format("turns {} to {}", first, last);
}

}  // namespace

std::vector<SegmentLine> describe_segments(std::span<const SegmentShape> segments) {
  const Turns turns = number_turns(segments);
  std::vector<SegmentLine> lines;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t parent = segments[i].parent;
    const size_t tokens = segments[i].roles.size();
    lines.push_back(
        {.text = fmt::format("segment {} {}: {} token{}, {}", i, whence(segments, turns, i), tokens,
                             tokens == 1 ? "" : "s", whose(turns[i])),
         .depth = parent < 0 ? 0 : lines[static_cast<size_t>(parent)].depth + 1});
  }
  return lines;
}

}  // namespace tailrace
