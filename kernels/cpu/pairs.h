// Sums that take two terms at a time: AVX512_BF16, beside the rest of AVX-512. What is here runs
// only where isa() is kAvx512Bf16.
//
// Thread: any.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

using Pair = uint32_t;  // two Bf16, the first in the lower half

}  // namespace tailrace::inline TR_ISA::gemm

#if defined(__AVX512F__)
#define TR_HAS_PAIRS 1
#define TR_PAIRS __attribute__((target("avx512bf16")))

namespace tailrace::inline TR_ISA::gemm {

// Sixteen pairs (a[i], b[i]), rounded to the nearest; subnormals become zeros, as in the sum.
TR_PAIRS inline __m512i pair_up(Vec16 a, Vec16 b) {
  const auto first = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v));
  const auto second = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(b.v));
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// Sixteen neighbours of each in their order become pairs: (a[0], a[1]) ... (b[14], b[15]).
TR_PAIRS inline __m512i round_neighbours(Vec16 a, Vec16 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v));
}

// Each lane's upper half is to_bf16() of it: unlike what pair_up() gives, subnormals stay.
inline __m512i round_upper_half(Vec16 a) {
  const __m512i bits = _mm512_castps_si512(a.v), one = _mm512_set1_epi32(1);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), is_nan, bits,
                              _mm512_set1_epi32(0x400000));
}
// Sixteen neighbours of each in their order become pairs of to_bf16() of them.
inline __m512i round_neighbours_exactly(Vec16 a, Vec16 b) {
  alignas(64) static constexpr auto kUpper = [] {
    std::array<uint16_t, 32> index = {};
    for (uint16_t i = 0; i < 32; ++i) index[i] = static_cast<uint16_t>(2 * i + 1);
    return index;
  }();
  return _mm512_permutex2var_epi16(round_upper_half(a), _mm512_load_si512(kUpper.data()),
                                   round_upper_half(b));
}

// sum[i] + x.second * b[i].second, rounded, + x.first * b[i].first, rounded
TR_PAIRS inline Vec16 add_pairs(Vec16 sum, __m512i x, __m512i b) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(b))};
}

// b[i] = (rows 2i and 2i + 1 of pairs, turned): from rows that hold pairs along one axis of a
// square of 32 x 32 to rows that hold pairs along the other. `from` has 16 rows of 32 pairs,
// from_stride apart; `to` likewise.
inline void turn_pairs(const Pair* from, int64_t from_stride, Pair* to, int64_t to_stride) {
  // A row of `turned` is one of the 32 columns with its 16 pairs.
  alignas(64) Pair turned[32 * 16];
  for (int64_t half = 0; half < 2; ++half)
    simd::transpose16(reinterpret_cast<const float*>(from + 16 * half), from_stride,
                      reinterpret_cast<float*>(turned + 16 * 16 * half), 16);
  alignas(64) static constexpr auto kInterleave = [] {
    std::array<std::array<uint16_t, 32>, 2> index = {};
    for (uint16_t i = 0; i < 32; ++i)
      for (uint16_t half = 0; half < 2; ++half)
        index[half][i] = static_cast<uint16_t>(16 * half + i / 2 + (i % 2) * 32);
    return index;
  }();
  const __m512i low = _mm512_load_si512(kInterleave[0].data());
  const __m512i high = _mm512_load_si512(kInterleave[1].data());
  for (int64_t i = 0; i < 16; ++i) {
    const __m512i a = _mm512_load_si512(turned + 32 * i);
    const __m512i b = _mm512_load_si512(turned + 32 * i + 16);
    _mm512_storeu_si512(to + i * to_stride, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(to + i * to_stride + 16, _mm512_permutex2var_epi16(a, high, b));
  }
}

}  // namespace tailrace::inline TR_ISA::gemm
#endif
