// The segments of a sample as a tree, in words: which goes on behind what of which other, and whose
// turns each has. Turns are counted through the segments in their order.
//
//   segment 0 begins: 35 tokens, turns 1 to 2
//     segment 1 goes on behind turn 2: 10 tokens, turn 3
//     segment 2 answers again what turn 1 answers: 5 tokens, turn 4
//   segment 3 begins anew: 12 tokens, turn 5
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/trajectory/trajectory.h"

namespace tailrace {

struct SegmentShape {
  int32_t parent = -1, parent_tokens = 0;  // as in Segment, and sound: find_fault()
  std::span<const TokenRole> roles = {};
};

struct SegmentLine {
  std::string text;  // "segment 1 goes on behind turn 2: 10 tokens, turn 3"
  int depth = 0;     // 0: a root
};

std::vector<SegmentLine> describe_segments(std::span<const SegmentShape> segments);

}  // namespace tailrace
