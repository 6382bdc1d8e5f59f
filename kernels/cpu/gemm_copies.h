// Copies of operands as tiles (gemm_tiles.h) read them.
//
// Thread: any.
#pragma once

#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/view.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

// Below this many multiply-adds a thread costs more than it saves.
// A core with two AVX-512 units does at best 32 in a cycle: this is 8192 cycles, a few
// microseconds, about what waking a thread and meeting it again costs.
constexpr int64_t kGrain = 256 * 1024;
// Floats or pairs of A that stay in the second-level cache while all panels pass by.
constexpr int64_t kRowBlockElements = 64 * 1024;

#ifdef TR_HAS_PAIRS
// Rows of A, rounded: pairs out[r * stride + k / 2], zeros behind k to the next whole vector.
TR_PAIRS inline void round_rows(const float* a, int64_t a_stride, int64_t rows, int64_t k,
                                Pair* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, a += a_stride, out += stride) {
    for (int64_t i = 0; i < k; i += 2 * kLanes)
      _mm512_storeu_si512(
          out + i / 2,
          round_neighbours(simd::load(a + i, k - i), simd::load(a + i + kLanes, k - i - kLanes)));
  }
}
#endif

// Panels or tiles [first, last) of kWidth columns of b side by side, each of which has `each`
// elements: rows of k for floats, or pairs of two rows. Columns that do not exist become zeros:
// load() reads no lane from behind the row's end. A tile has fewer columns than a vector, and the
// row of the next k begins right behind it.
template <int64_t kWidth>
void pack_columns(ConstMatrix b, int64_t first, int64_t last, int64_t each, float* out) {
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t i = first; i < last; ++i) {
      const float* in = b.row(r) + i * kWidth;
      for (int64_t c = 0; c < kWidth; c += kLanes)
        simd::store(out + i * each + r * kWidth + c, simd::load(in + c, b.cols - i * kWidth - c),
                    kWidth - c);
    }
  }
}
#ifdef TR_HAS_PAIRS
template <int64_t kWidth>
TR_PAIRS void pack_columns(ConstMatrix b, int64_t first, int64_t last, int64_t each, Pair* out) {
  // Rows of which some columns are read in one go are apart: no processor asks for them by itself.
  constexpr int64_t kAhead = 16;
  for (int64_t r = 0; r < b.rows; r += 2) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t c = 0; c < kWidth; c += kLanes) {
        const int64_t col = i * kWidth + c, left = b.cols - col;
        for (int64_t next = r + kAhead; next < r + kAhead + 2; ++next)
          __builtin_prefetch(b.row(next) + col, /*rw=*/0, /*locality=*/2);
        const Vec16 even = simd::load(b.row(r) + col, left);
        const Vec16 odd = r + 1 < b.rows ? simd::load(b.row(r + 1) + col, left) : simd::zero();
        _mm512_mask_storeu_epi32(out + i * each + r / 2 * kWidth + c,
                                 simd::first_lanes(kWidth - c).bits, pair_up(even, odd));
      }
    }
  }
}
#else
template <int64_t kWidth>
void pack_columns(ConstMatrix, int64_t, int64_t, int64_t, Pair*) {
  TR_CHECK(false, "this instruction set has no pairs");
}
#endif

}  // namespace tailrace::inline TR_ISA::gemm
