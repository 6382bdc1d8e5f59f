// Sequences that end with a token that the host has not seen.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"

namespace tailrace {

// Tokens that end a sequence, of each draw; a request with more has the others found by the host.
constexpr int64_t kDrawnStops = 8;

// Behind take_drawn(), in a batch whose row t is sequence t: where the draw from[t] is one of its
// stop tokens, the row has the token 0 at position 0 of block `spare`, as a row that nobody reads.
// So it costs one position of attention, and writes none of its sequence's pages.
struct EndDrawn {
  std::span<const int32_t> drawn;
  std::span<const int32_t> stops;     // [drawn.size(), kDrawnStops]; -1: none
  std::span<const int32_t> from;      // [rows], each below drawn.size(); -1: no draw
  std::span<int32_t> ids, positions;  // [rows]
  std::span<int32_t> block_tables;    // [rows, max_blocks]
  int max_blocks = 0;
  int32_t spare = 0;
};
void end_drawn(const Stream& stream, const EndDrawn& args);

}  // namespace tailrace
