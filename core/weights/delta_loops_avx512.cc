// AVX-512 F, BW and VL: 64 elements at a time, which are a word of the bitmap. What is left over
// at the end of a chunk is left to the portable loops.
#if defined(__x86_64__)

#include <cstring>

#include <immintrin.h>

#include "core/weights/delta_loops.h"

// Functions of their own, because a lambda has no target.
#define TR_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx2,popcnt")))

namespace tailrace {
namespace avx512 {
namespace {

// `planes` from the k-th symbol, the e-th escape and the element `first` (of a word) on.
DeltaPlanes behind(const DeltaPlanes& planes, int64_t first, int64_t k, int64_t e) {
  DeltaPlanes rest = planes;
  if (rest.bitmap != nullptr) rest.bitmap += first / 64;
  for (uint8_t*& plane : rest.planes)
    if (plane != nullptr) plane += k;
  if (rest.escapes != nullptr) rest.escapes += e;
  return rest;
}

// delta_symbol() and delta_target() of delta_loops.h, step by step, for 32 elements of 2 bytes and
// below for 16 of 4.
TR_WIDE inline __m512i symbols2(__m512i base, __m512i target) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i flipped = _mm512_xor_si512(target, _mm512_andnot_si512(magnitude, base));
  const __m512i level =
      _mm512_xor_si512(flipped, _mm512_and_si512(_mm512_srai_epi16(flipped, 15), magnitude));
  const __m512i step = _mm512_sub_epi16(level, _mm512_and_si512(base, magnitude));
  return _mm512_xor_si512(_mm512_slli_epi16(step, 1), _mm512_srai_epi16(step, 15));
}

TR_WIDE inline __m512i targets2(__m512i base, __m512i symbols) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF), zero = _mm512_setzero_si512();
  const __m512i odd = _mm512_and_si512(symbols, _mm512_set1_epi16(1));
  const __m512i step = _mm512_xor_si512(_mm512_srli_epi16(symbols, 1), _mm512_sub_epi16(zero, odd));
  const __m512i level = _mm512_add_epi16(_mm512_and_si512(base, magnitude), step);
  const __m512i flipped =
      _mm512_xor_si512(level, _mm512_and_si512(_mm512_srai_epi16(level, 15), magnitude));
  return _mm512_xor_si512(flipped, _mm512_andnot_si512(magnitude, base));
}

TR_WIDE inline __m512i symbols4(__m512i base, __m512i target) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i flipped = _mm512_xor_si512(target, _mm512_andnot_si512(magnitude, base));
  const __m512i level =
      _mm512_xor_si512(flipped, _mm512_and_si512(_mm512_srai_epi32(flipped, 31), magnitude));
  const __m512i step = _mm512_sub_epi32(level, _mm512_and_si512(base, magnitude));
  return _mm512_xor_si512(_mm512_slli_epi32(step, 1), _mm512_srai_epi32(step, 31));
}

TR_WIDE inline __m512i targets4(__m512i base, __m512i symbols) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF), zero = _mm512_setzero_si512();
  const __m512i odd = _mm512_and_si512(symbols, _mm512_set1_epi32(1));
  const __m512i step = _mm512_xor_si512(_mm512_srli_epi32(symbols, 1), _mm512_sub_epi32(zero, odd));
  const __m512i level = _mm512_add_epi32(_mm512_and_si512(base, magnitude), step);
  const __m512i flipped =
      _mm512_xor_si512(level, _mm512_and_si512(_mm512_srai_epi32(level, 31), magnitude));
  return _mm512_xor_si512(flipped, _mm512_andnot_si512(magnitude, base));
}

// Rare, so one by one.
TR_WIDE inline void put_escapes(__m512i symbols, uint32_t which, const DeltaPlanes& out,
                                DeltaCounts& counts) {
  alignas(64) uint16_t values[32];
  _mm512_store_si512(values, symbols);
  for (; which != 0; which &= which - 1)
    out.escapes[counts.escapes++] = values[__builtin_ctz(which)];
}

// The symbols of the bits of `which`, side by side; writes up to 16 bytes.
TR_WIDE inline int64_t put_packed(__m128i bytes, __mmask16 which, uint8_t* out) {
  const __m512i packed = _mm512_maskz_compress_epi32(which, _mm512_cvtepu8_epi32(bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(packed));
  return __builtin_popcount(which);
}

TR_WIDE DeltaCounts scan2(const std::byte* base, const std::byte* target, int64_t n, bool dense,
                          const DeltaPlanes& out) {
  DeltaCounts counts;
  const __m512i escape = _mm512_set1_epi16(kDeltaEscape);
  int64_t first = 0;
  for (; first + 64 <= n; first += 64) {
    uint64_t bits = 0;
    for (int64_t half = 0; half < 64; half += 32) {
      const int64_t at = 2 * (first + half);
      const __m512i from = _mm512_loadu_si512(base + at), to = _mm512_loadu_si512(target + at);
      const uint32_t differ = _mm512_cmpneq_epi16_mask(from, to);
      if (differ == 0 && !dense) continue;
      const __m512i symbols = symbols2(from, to);
      const uint32_t large = _mm512_cmpge_epu16_mask(symbols, escape);
      if (large != 0) put_escapes(symbols, large, out, counts);
      const __m256i bytes = _mm512_cvtepi16_epi8(_mm512_min_epu16(symbols, escape));
      if (dense) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.planes[0] + first + half), bytes);
        counts.changed += __builtin_popcount(differ);
        continue;
      }
      bits |= static_cast<uint64_t>(differ) << half;
      // Writes 16 bytes and counts those that are meant: what is behind them is written over by the
      // next, and kDeltaSlack is the room behind the last.
      counts.changed += put_packed(_mm256_castsi256_si128(bytes), static_cast<__mmask16>(differ),
                                   out.planes[0] + counts.changed);
      counts.changed +=
          put_packed(_mm256_extracti128_si256(bytes, 1), static_cast<__mmask16>(differ >> 16),
                     out.planes[0] + counts.changed);
    }
    if (!dense) out.bitmap[first / 64] = bits;
  }
  const DeltaCounts rest = portable_delta_loops().scan2(
      base + 2 * first, target + 2 * first, n - first, dense,
      behind(out, first, dense ? first : counts.changed, counts.escapes));
  return {counts.changed + rest.changed, counts.escapes + rest.escapes};
}

TR_WIDE DeltaCounts scan4(const std::byte* base, const std::byte* target, int64_t n, bool dense,
                          const DeltaPlanes& out) {
  int64_t changed = 0, first = 0;
  for (; first + 64 <= n; first += 64) {
    uint64_t bits = 0;
    for (int64_t part = 0; part < 64; part += 16) {
      const int64_t at = 4 * (first + part);
      const __m512i from = _mm512_loadu_si512(base + at), to = _mm512_loadu_si512(target + at);
      const __mmask16 differ = _mm512_cmpneq_epi32_mask(from, to);
      if (differ == 0 && !dense) continue;
      __m512i symbols = symbols4(from, to);
      if (!dense) symbols = _mm512_maskz_compress_epi32(differ, symbols);
      const int64_t k = dense ? first + part : changed;
      for (size_t plane = 0; plane < 4; ++plane) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out.planes[plane] + k),
                         _mm512_cvtepi32_epi8(symbols));
        symbols = _mm512_srli_epi32(symbols, 8);
      }
      changed += __builtin_popcount(differ);
      bits |= static_cast<uint64_t>(differ) << part;
    }
    if (!dense) out.bitmap[first / 64] = bits;
  }
  const DeltaCounts rest =
      portable_delta_loops().scan4(base + 4 * first, target + 4 * first, n - first, dense,
                                   behind(out, first, dense ? first : changed, 0));
  return {changed + rest.changed, 0};
}

// 16 symbols of 2 bytes, those of `which` taken from `plane` on, the others 0.
TR_WIDE inline __m256i take_packed(const uint8_t* plane, __mmask16 which) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(plane));
  return _mm512_cvtepi32_epi16(_mm512_maskz_expand_epi32(which, _mm512_cvtepu8_epi32(bytes)));
}

TR_WIDE void restore2(const std::byte* base, int64_t n, bool dense, const DeltaPlanes& in,
                      std::byte* out) {
  const __m512i escape = _mm512_set1_epi16(kDeltaEscape);
  int64_t first = 0, k = 0, e = 0;
  for (; first + 64 <= n; first += 64) {
    for (int64_t half = 0; half < 64; half += 32) {
      const int64_t at = 2 * (first + half);
      const __m512i from = _mm512_loadu_si512(base + at);
      __m512i symbols;
      if (dense) {
        symbols = _mm512_cvtepu8_epi16(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in.planes[0] + k)));
        k += 32;
      } else {
        const auto bits = static_cast<uint32_t>(in.bitmap[first / 64] >> half);
        if (bits == 0) {
          _mm512_storeu_si512(out + at, from);
          continue;
        }
        const __m256i low = take_packed(in.planes[0] + k, static_cast<__mmask16>(bits));
        k += __builtin_popcount(bits & 0xFFFF);
        const __m256i high = take_packed(in.planes[0] + k, static_cast<__mmask16>(bits >> 16));
        k += __builtin_popcount(bits >> 16);
        symbols = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      }
      // Symbols that were not taken are 0, so that the mask finds escapes of the changed elements
      // alone.
      uint32_t large = _mm512_cmpeq_epi16_mask(symbols, escape);
      if (large != 0) {
        alignas(64) uint16_t values[32];
        _mm512_store_si512(values, symbols);
        for (; large != 0; large &= large - 1) values[__builtin_ctz(large)] = in.escapes[e++];
        symbols = _mm512_load_si512(values);
      }
      _mm512_storeu_si512(out + at, targets2(from, symbols));
    }
  }
  portable_delta_loops().restore2(base + 2 * first, n - first, dense, behind(in, first, k, e),
                                  out + 2 * first);
}

TR_WIDE void restore4(const std::byte* base, int64_t n, bool dense, const DeltaPlanes& in,
                      std::byte* out) {
  int64_t first = 0, k = 0;
  for (; first + 64 <= n; first += 64) {
    for (int64_t part = 0; part < 64; part += 16) {
      const int64_t at = 4 * (first + part);
      const __m512i from = _mm512_loadu_si512(base + at);
      const auto bits = static_cast<__mmask16>(dense ? 0xFFFF : in.bitmap[first / 64] >> part);
      if (bits == 0) {
        _mm512_storeu_si512(out + at, from);
        continue;
      }
      __m512i symbols = _mm512_setzero_si512();
      for (size_t plane = 4; plane-- > 0;) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<__m128i*>(in.planes[plane] + k));
        symbols = _mm512_or_si512(_mm512_slli_epi32(symbols, 8), _mm512_cvtepu8_epi32(bytes));
      }
      k += __builtin_popcount(bits);
      symbols = _mm512_maskz_expand_epi32(bits, symbols);
      _mm512_storeu_si512(out + at, targets4(from, symbols));
    }
  }
  portable_delta_loops().restore4(base + 4 * first, n - first, dense, behind(in, first, k, 0),
                                  out + 4 * first);
}

}  // namespace
}  // namespace avx512

const DeltaLoops& avx512_delta_loops() {
  static constexpr DeltaLoops kLoops = {avx512::scan2, avx512::scan4, avx512::restore2,
                                        avx512::restore4};
  return kLoops;
}

}  // namespace tailrace

#endif
