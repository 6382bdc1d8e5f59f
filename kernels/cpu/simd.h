// Sixteen floats at a time: one AVX-512 register, two AVX2 registers, or plain loops.
//
// Every operation is elementwise and correctly rounded or has one fixed recipe, so an element gets
// the same bits in a full vector and in a tail. Reductions join lanes in one fixed tree:
// lane i with i + 8, then + 4, + 2, + 1. All three versions follow the same recipes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/cpu/isa_name.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
// g++ 12 warns about the deliberately undefined registers in its own header (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define TR_INLINE inline __attribute__((always_inline))

namespace tailrace::inline TR_ISA {

constexpr int64_t kLanes = 16;

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

#if defined(__AVX512F__)

struct Vec16 {
  __m512 v;
};

namespace simd {

// The first n lanes; n may be anything. Worth keeping outside a loop.
struct Mask {
  __mmask16 bits;
};
TR_INLINE Mask first_lanes(int64_t n) {
  return {static_cast<__mmask16>(n >= kLanes ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u)};
}

TR_INLINE Vec16 zero() { return {_mm512_setzero_ps()}; }
TR_INLINE Vec16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
TR_INLINE Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
// Lanes outside the mask are not read and become 0.
TR_INLINE Vec16 load(const float* p, Mask m) { return {_mm512_maskz_loadu_ps(m.bits, p)}; }
TR_INLINE Vec16 load(const float* p, int64_t n) { return load(p, first_lanes(n)); }
TR_INLINE Vec16 load(const Bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
TR_INLINE Vec16 load(const Bf16* p, Mask m) {
  const __m256i bits = _mm256_maskz_loadu_epi16(m.bits, p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
// In a register from here on: GCC would rather load a value again for each of a few uses, and loads
// are what short tiles wait for. Does nothing without AVX-512, whose 32 registers it takes.
TR_INLINE void keep(Vec16& a) { asm("" : "+v"(a.v)); }
TR_INLINE void store(float* p, Vec16 a) { _mm512_storeu_ps(p, a.v); }
TR_INLINE void store(float* p, Vec16 a, Mask m) { _mm512_mask_storeu_ps(p, m.bits, a.v); }
TR_INLINE void store(float* p, Vec16 a, int64_t n) { store(p, a, first_lanes(n)); }
// The first n lanes of a, the others of b.
TR_INLINE Vec16 select_first(int64_t n, Vec16 a, Vec16 b) {
  return {_mm512_mask_blend_ps(first_lanes(n).bits, b.v, a.v)};
}

TR_INLINE Vec16 add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TR_INLINE Vec16 sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TR_INLINE Vec16 mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TR_INLINE Vec16 div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
TR_INLINE Vec16 sqrt(Vec16 a) { return {_mm512_sqrt_ps(a.v)}; }
// a * b + c, rounded once.
TR_INLINE Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Both return b where either is NaN.
TR_INLINE Vec16 min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }
TR_INLINE Vec16 max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }

TR_INLINE Vec16 round_to_int(Vec16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for whole n in [-127, 128].
TR_INLINE Vec16 scale_by_power(Vec16 a, Vec16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a where x >= bound or x is NaN, else 0.
TR_INLINE Vec16 zero_below(Vec16 x, float bound, Vec16 a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_NLT_UQ), a.v)};
}

TR_INLINE float reduce_add(Vec16 a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v),
                           _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
TR_INLINE float reduce_max(Vec16 a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v),
                           _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

}  // namespace simd

#elif defined(__AVX2__) && defined(__FMA__)

struct Vec16 {
  __m256 lo, hi;
};

namespace simd {

TR_INLINE __m256i first_eight(int64_t n) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  int bound = static_cast<int>(n < 0 ? 0 : n > 8 ? 8 : n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), lane);
}

TR_INLINE Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TR_INLINE Vec16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TR_INLINE Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
struct Mask {
  __m256i lo, hi;
};
TR_INLINE Mask first_lanes(int64_t n) { return {first_eight(n), first_eight(n - 8)}; }
TR_INLINE Vec16 load(const float* p, Mask m) {
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
TR_INLINE Vec16 load(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : load(p, first_lanes(n));
}
TR_INLINE __m256 load_eight(const Bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
TR_INLINE Vec16 load(const Bf16* p) { return {load_eight(p), load_eight(p + 8)}; }
TR_INLINE void keep(const Vec16&) {}
TR_INLINE void store(float* p, Vec16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
TR_INLINE void store(float* p, Vec16 a, Mask m) {
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
TR_INLINE void store(float* p, Vec16 a, int64_t n) {
  return n >= kLanes ? store(p, a) : store(p, a, first_lanes(n));
}
TR_INLINE Vec16 select_first(int64_t n, Vec16 a, Vec16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(first_eight(n))),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(first_eight(n - 8)))};
}

TR_INLINE Vec16 add(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
TR_INLINE Vec16 sub(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
TR_INLINE Vec16 mul(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
TR_INLINE Vec16 div(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
TR_INLINE Vec16 sqrt(Vec16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
TR_INLINE Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TR_INLINE Vec16 min(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
TR_INLINE Vec16 max(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

TR_INLINE Vec16 round_to_int(Vec16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
// In two steps, because 2^128 and 2^-127 are no normal floats. The first step is exact.
TR_INLINE __m256 scale_by_power(__m256 a, __m256 n) {
  __m256i whole = _mm256_cvtps_epi32(n);
  __m256i half = _mm256_srai_epi32(whole, 1);
  __m256i rest = _mm256_sub_epi32(whole, half);
  __m256i bias = _mm256_set1_epi32(127);
  __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}
TR_INLINE Vec16 scale_by_power(Vec16 a, Vec16 n) {
  return {scale_by_power(a.lo, n.lo), scale_by_power(a.hi, n.hi)};
}
TR_INLINE Vec16 zero_below(Vec16 x, float bound, Vec16 a) {
  __m256 b = _mm256_set1_ps(bound);
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, b, _CMP_NLT_UQ)),
          _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, b, _CMP_NLT_UQ))};
}

TR_INLINE float reduce_add(Vec16 a) {
  __m256 h = _mm256_add_ps(a.lo, a.hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
TR_INLINE float reduce_max(Vec16 a) {
  __m256 h = _mm256_max_ps(a.lo, a.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

}  // namespace simd

#else

struct Vec16 {
  float lane[kLanes];
};

namespace simd {

template <class F>
TR_INLINE Vec16 each_lane(F&& f) {
  Vec16 r;
  for (int i = 0; i < kLanes; ++i) r.lane[i] = f(i);
  return r;
}

TR_INLINE Vec16 broadcast(float x) {
  return each_lane([&](int) { return x; });
}
TR_INLINE Vec16 zero() { return broadcast(0); }
TR_INLINE Vec16 load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
struct Mask {
  int64_t n;
};
TR_INLINE Mask first_lanes(int64_t n) { return {n}; }
TR_INLINE Vec16 load(const float* p, Mask m) {
  return each_lane([&](int i) { return i < m.n ? p[i] : 0.0f; });
}
TR_INLINE Vec16 load(const float* p, int64_t n) { return load(p, first_lanes(n)); }
TR_INLINE Vec16 load(const Bf16* p) {
  return each_lane([&](int i) { return to_float(p[i]); });
}
TR_INLINE void keep(const Vec16&) {}
TR_INLINE void store(float* p, const Vec16& a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.lane[i];
}
TR_INLINE void store(float* p, const Vec16& a, Mask m) {
  for (int i = 0; i < kLanes && i < m.n; ++i) p[i] = a.lane[i];
}
TR_INLINE void store(float* p, const Vec16& a, int64_t n) { store(p, a, first_lanes(n)); }
TR_INLINE Vec16 select_first(int64_t n, const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return i < n ? a.lane[i] : b.lane[i]; });
}

TR_INLINE Vec16 add(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
TR_INLINE Vec16 sub(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
TR_INLINE Vec16 mul(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
TR_INLINE Vec16 div(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
TR_INLINE Vec16 sqrt(const Vec16& a) {
  return each_lane([&](int i) { return std::sqrt(a.lane[i]); });
}
TR_INLINE Vec16 fma(const Vec16& a, const Vec16& b, const Vec16& c) {
  return each_lane([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
TR_INLINE Vec16 min(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
TR_INLINE Vec16 max(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}

TR_INLINE Vec16 round_to_int(const Vec16& a) {
  return each_lane([&](int i) { return std::nearbyint(a.lane[i]); });
}
TR_INLINE Vec16 scale_by_power(const Vec16& a, const Vec16& n) {
  return each_lane([&](int i) {
    return std::isnan(n.lane[i]) ? n.lane[i] : std::ldexp(a.lane[i], static_cast<int>(n.lane[i]));
  });
}
TR_INLINE Vec16 zero_below(const Vec16& x, float bound, const Vec16& a) {
  return each_lane([&](int i) { return x.lane[i] < bound ? 0.0f : a.lane[i]; });
}

template <class F>
TR_INLINE float reduce(Vec16 a, F&& join) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) a.lane[i] = join(a.lane[i], a.lane[i + width]);
  }
  return a.lane[0];
}
TR_INLINE float reduce_add(const Vec16& a) {
  return reduce(a, [](float x, float y) { return x + y; });
}
TR_INLINE float reduce_max(const Vec16& a) {
  return reduce(a, [](float x, float y) { return x > y ? x : y; });
}

}  // namespace simd

#endif

namespace simd {

// e^x within about 1 ulp. Results below the smallest normal float become 0 (so does e^-inf), those
// above the largest become inf, NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by the polynomial of Cephes' expf.
TR_INLINE Vec16 exp(Vec16 x) {
  constexpr float kSmallest = -87.33654f;  // ln of the smallest normal float
  // NaN passes: it is the second operand. Above 88.9 n is 128 and the result inf, below -88 it is
  // made 0 at the end; in between n stays where scale_by_power() takes it.
  Vec16 t = min(broadcast(88.9f), max(broadcast(-88.0f), x));
  Vec16 n = round_to_int(mul(t, broadcast(1.44269504088896341f)));
  // ln 2 in two floats, the nearest one and what is left of it: r keeps its digits for large n.
  Vec16 r = fma(n, broadcast(-0.693147182464599609375f), t);
  r = fma(n, broadcast(1.90465429995776804525e-9f), r);
  Vec16 p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, broadcast(1.0f)));
  return zero_below(x, kSmallest, scale_by_power(p, n));
}

// The same bits as exp() of a vector with x in it.
TR_INLINE float exp(float x) {
  float lanes[kLanes];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

// 1 / (1 + e^-x)
TR_INLINE Vec16 sigmoid(Vec16 x) {
  Vec16 one = broadcast(1.0f);
  return div(one, add(one, exp(sub(zero(), x))));
}

// dst[j * dst_stride + i] = src[i * src_stride + j] for i, j in 0..15.
TR_INLINE void transpose16(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
#if defined(__AVX512F__)
  __m512 a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(src + i * src_stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(dst + i * dst_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_ps(dst + (i + 8) * dst_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
    _mm512_storeu_ps(dst + (i + 4) * dst_stride, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_ps(dst + (i + 12) * dst_stride, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) dst[j * dst_stride + i] = src[i * src_stride + j];
  }
#endif
}

}  // namespace simd
}  // namespace tailrace::inline TR_ISA
