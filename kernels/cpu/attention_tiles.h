// The three inner products of attention, for up to eight queries and one KV head at a time.
//
// They fix the order of every sum (over head_dim, over positions, over queries: ascending, one
// accumulator an element), so how queries are grouped changes no bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/simd.h"
#include "kernels/ops/attention.h"

namespace tailrace::inline TR_ISA::attention_tiles {

constexpr int kQueries = 8;  // queries that share one pass over the keys
// Queries are copied to rows of this constant length, so that one register addresses all eight. It
// bounds head_dim; the odd line at the end keeps the rows out of each other's cache sets.
constexpr int64_t kQueryStride = kMaxHeadDim + kLanes;

// Vectors of sums that fit in the registers beside what they are made of.
#if defined(__AVX512F__)
constexpr int kSumsAtOnce = 16;
#else
constexpr int kSumsAtOnce = 4;
#endif

// Asks for a line that is read some thousand cycles later. Of a decode step each 4 KiB of a cache
// lie elsewhere, where the processor's own prefetching begins anew and reads at half of the rate
// that memory has; into the second-level cache, since the first has too few misses in flight. Many
// queries compute for longer than memory takes.
template <int kCount>
constexpr bool kAsksFor = kCount <= 4;
template <int kCount>
TR_INLINE void ask_for(const std::byte* line) {
  if constexpr (kAsksFor<kCount>) __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
}

// A [head_dim, positions] matrix, element (d, position) at first[d * stride + position]: what
// score_all() reads, in groups of 16 positions. KeysOf (attention_parts.h) is another one.
struct WholeColumns {
  const float* first = nullptr;
  int64_t stride = 0;

  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
  // Where group i lies, or behind the last one what is read then.
  const std::byte* stored(int64_t i) const {
    return reinterpret_cast<const std::byte*>(first + i * kLanes);
  }
  // The group there as floats, in rows that are `stride` apart.
  const float* columns(int64_t /*i*/, const std::byte* stored_at, int /*slot*/) const {
    return reinterpret_cast<const float*>(stored_at);
  }
};

// Groups of 16 positions that are scored together: enough independent sums to hide the latency.
constexpr int groups_at_once(int queries) { return queries <= 2 ? 4 : 2; }

// scores[q * score_stride + position] = sum over d of queries[q * kQueryStride + d] * column(d,
// position) for kGroups groups; head_dim rows of each of `next` are asked for meanwhile.
template <int kCount, int kGroups, class T>
TR_INLINE void score_groups(const float* queries, int64_t head_dim, const T* const* groups,
                            int64_t stride, const std::byte* const* next, int64_t row_bytes,
                            float* scores, int64_t score_stride) {
  Vec16 acc[kCount][kGroups];
  for (auto& row : acc) {
    for (auto& a : row) a = simd::zero();
  }
// A round of few queries is so short that counting it costs a tenth.
#pragma GCC unroll 2
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec16 column[kGroups];
    for (int g = 0; g < kGroups; ++g) column[g] = simd::load(groups[g] + d * stride);
    for (int g = 0; g < kGroups; ++g) ask_for<kCount>(next[g] + d * row_bytes);
    for (int q = 0; q < kCount; ++q) {
      Vec16 x = simd::broadcast(queries[q * kQueryStride + d]);
      for (int g = 0; g < kGroups; ++g) acc[q][g] = simd::fma(x, column[g], acc[q][g]);
    }
  }
  for (int q = 0; q < kCount; ++q) {
    for (int g = 0; g < kGroups; ++g) {
      simd::store(scores + q * score_stride + g * kLanes, acc[q][g]);
    }
  }
}

// All `num_groups` groups of `keys`, at least one.
template <int kCount, class Keys>
TR_INLINE void score_all(const float* queries, int64_t head_dim, int64_t num_groups,
                         const Keys& keys, float* scores, int64_t score_stride) {
  constexpr int kGroups = groups_at_once(kCount);
  const int64_t row_bytes = keys.row_bytes();
  const std::byte* next[kGroups];
  for (int i = 0; i < kGroups; ++i) next[i] = keys.stored(i);
  int64_t g = 0;
  for (; g + kGroups <= num_groups; g += kGroups) {
    decltype(keys.columns(0, nullptr, 0)) groups[kGroups];
    for (int i = 0; i < kGroups; ++i) {
      groups[i] = keys.columns(g + i, next[i], i);
      next[i] = keys.stored(g + kGroups + i);
    }
    score_groups<kCount, kGroups>(queries, head_dim, groups, keys.stride, next, row_bytes,
                                  scores + g * kLanes, score_stride);
  }
  for (; g < num_groups; ++g) {
    const auto* group = keys.columns(g, keys.stored(g), 0);
    const std::byte* then = keys.stored(g + kGroups);
    score_groups<kCount, 1>(queries, head_dim, &group, keys.stride, &then, row_bytes,
                            scores + g * kLanes, score_stride);
  }
}

// acc[q][v] += sum over j in [0, count) of weights[q * weight_stride + j] * rows[j][16 v ...];
// meanwhile `count` rows of `next`, of row_bytes, are asked for.
template <int kCount, int kVectors, class T>
TR_INLINE void weighted_rows(const float* weights, int64_t weight_stride, const T* rows,
                             int64_t row_stride, const std::byte* next, int64_t row_bytes,
                             int64_t count, int64_t cols, Vec16 (&acc)[kCount][kVectors]) {
  const simd::Mask last = simd::first_lanes(cols - (kVectors - 1) * kLanes);
  // In a copy, so that the sums stay in registers whatever the caller does with his. Unrolled at
  // our word, or GCC may store every sum again in each round.
  Vec16 sum[kCount][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kCount; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[q][v] = acc[q][v];
  }
#pragma GCC unroll 4
  for (int64_t j = 0; j < count; ++j) {
    Vec16 row[kVectors];
    for (int v = 0; v + 1 < kVectors; ++v) row[v] = simd::load(rows + j * row_stride + v * kLanes);
    row[kVectors - 1] = simd::load(rows + j * row_stride + (kVectors - 1) * kLanes, last);
    // Lines of 64 bytes.
    for (int v = 0; v < kVectors; v += static_cast<int>(sizeof(float) / sizeof(T)))
      ask_for<kCount>(next + j * row_bytes + v * kLanes * static_cast<int64_t>(sizeof(T)));
#pragma GCC unroll 8
    for (int q = 0; q < kCount; ++q) {
      Vec16 w = simd::broadcast(weights[q * weight_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[q][v] = simd::fma(w, row[v], sum[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kCount; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[q][v] = sum[q][v];
  }
}

// rows[j][16 v ...] += sum over q of weights[q * weight_stride + j] * queries[q * kQueryStride + 16
// v ...] for kPositions rows: what keys and values receive from these queries. Queries are padded
// with zeros to whole vectors.
template <int kPositions, int kVectors>
TR_INLINE void spread_queries(const float* weights, int64_t weight_stride, const float* queries,
                              int num_queries, int64_t cols, float* rows, int64_t row_stride) {
  constexpr int kLast = kVectors - 1;
  const simd::Mask last = simd::first_lanes(cols - kLast * kLanes);
  Vec16 acc[kPositions][kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kPositions; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kLast; ++v) acc[j][v] = simd::load(rows + j * row_stride + v * kLanes);
    acc[j][kLast] = simd::load(rows + j * row_stride + kLast * kLanes, last);
  }
  for (int q = 0; q < num_queries; ++q) {
    Vec16 query[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      query[v] = simd::load(queries + q * kQueryStride + v * kLanes);
    }
#pragma GCC unroll 16
    for (int j = 0; j < kPositions; ++j) {
      Vec16 w = simd::broadcast(weights[q * weight_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[j][v] = simd::fma(w, query[v], acc[j][v]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kPositions; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kLast; ++v) simd::store(rows + j * row_stride + v * kLanes, acc[j][v]);
    simd::store(rows + j * row_stride + kLast * kLanes, acc[j][kLast], last);
  }
}

}  // namespace tailrace::inline TR_ISA::attention_tiles
