// Digests of the rows of a weight where it lies: a proof of it reads back 16 bytes a block and not
// the weight. A GPU's alone; the host digests its own memory (core/base/digest_of.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// A block is longer than this: XXH3 has other formulas for short texts.
constexpr int64_t kMostUndigestedBytes = 240;

// digests[2 b], digests[2 b + 1] = the lower and the upper half of XXH3-128 over the rows of block
// b, as they are packed (float32 or bfloat16), one behind the other and without their padding
//
//   weight   its rows [first_row, first_row + rows) are digested
//   digests  [2 * blocks], blocks of rows_per_block rows, of which the last may have fewer; each is
//            longer than kMostUndigestedBytes
// rows == 0 is allowed.
struct RowDigests {
  Weight weight;
  int64_t first_row = 0, rows = 0;
  int64_t rows_per_block = 1;
  std::span<uint64_t> digests;
};
void digest_rows(const Stream& stream, const RowDigests& args);

}  // namespace tailrace
