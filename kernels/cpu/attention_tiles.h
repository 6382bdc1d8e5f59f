// The three inner products of attention, for up to eight queries and one KV head at a time.
//
// They fix the order of every sum (over head_dim, over positions, over queries: ascending, one
// accumulator an element), so how queries are grouped changes no bit.
#pragma once

#include <array>
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

// Where positions [16 i, 16 i + 16) of a [head_dim, positions] matrix lie: element (d, 16 i + lane)
// is at first[d * stride + lane], and lanes 8..15 at second[d * stride + lane - 8].
struct ColumnGroup {
  const float* first = nullptr;
  const float* second = nullptr;
};

// Asks for a line that is read some thousand cycles later. Of a decode step each 4 KiB of a cache
// lie elsewhere, where the processor's own prefetching begins anew and reads at half of the rate
// that memory has; into the second-level cache, since the first has too few misses in flight. Many
// queries compute for longer than memory takes.
template <int kCount>
TR_INLINE void ask_for(const float* line) {
  if constexpr (kCount <= 4) __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
}

// scores[q * score_stride + position] = sum over d of queries[q * kQueryStride + d] * column(d,
// position) for kGroups groups of 16 positions; `next` are asked for meanwhile.
template <int kCount, int kGroups, bool kSplit>
TR_INLINE void score_groups(const float* queries, int64_t head_dim, const ColumnGroup* groups,
                            const ColumnGroup* next, int64_t stride, float* scores,
                            int64_t score_stride) {
  Vec16 acc[kCount][kGroups];
  for (auto& row : acc) {
    for (auto& a : row) a = simd::zero();
  }
// A round of few queries is so short that counting it costs a tenth.
#pragma GCC unroll 2
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec16 column[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      column[g] =
          kSplit ? simd::load_halves(groups[g].first + d * stride, groups[g].second + d * stride)
                 : simd::load(groups[g].first + d * stride);
    }
    for (int g = 0; g < kGroups; ++g) ask_for<kCount>(next[g].first + d * stride);
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

// All `num_groups` groups, at least one; `group_at(i)` says where group i lies, `behind` what is
// read after them.
template <int kCount, bool kSplit, class GroupAt>
TR_INLINE void score_all(const float* queries, int64_t head_dim, int64_t num_groups,
                         GroupAt&& group_at, const float* behind, int64_t stride, float* scores,
                         int64_t score_stride) {
  constexpr int kGroups = kCount <= 2 ? 4 : 2;  // enough independent sums to hide the latency
  ColumnGroup groups[kGroups], next[kGroups];
  const auto look_at = [&](int64_t first) {
    for (int i = 0; i < kGroups; ++i)
      next[i] = first + i < num_groups ? group_at(first + i) : ColumnGroup{.first = behind};
  };
  look_at(0);
  int64_t g = 0;
  for (; g + kGroups <= num_groups; g += kGroups) {
    for (int i = 0; i < kGroups; ++i) groups[i] = next[i];
    look_at(g + kGroups);
    score_groups<kCount, kGroups, kSplit>(queries, head_dim, groups, next, stride,
                                          scores + g * kLanes, score_stride);
  }
  for (; g < num_groups; ++g) {
    const ColumnGroup group = group_at(g), then{.first = behind};
    score_groups<kCount, 1, kSplit>(queries, head_dim, &group, &then, stride, scores + g * kLanes,
                                    score_stride);
  }
}

// acc[q][v] += sum over j in [0, count) of weights[q * weight_stride + j] * rows[j][16 v ...]; the
// same of `next` is asked for meanwhile.
template <int kCount, int kVectors>
TR_INLINE void weighted_rows(const float* weights, int64_t weight_stride, const float* rows,
                             const float* next, int64_t row_stride, int64_t count, int64_t cols,
                             Vec16 (&acc)[kCount][kVectors]) {
  const simd::Mask last = simd::first_lanes(cols - (kVectors - 1) * kLanes);
  // In a copy, so that the sums stay in registers whatever the caller does with his.
  Vec16 sum[kCount][kVectors];
  for (int q = 0; q < kCount; ++q) {
    for (int v = 0; v < kVectors; ++v) sum[q][v] = acc[q][v];
  }
#pragma GCC unroll 4
  for (int64_t j = 0; j < count; ++j) {
    Vec16 row[kVectors];
    for (int v = 0; v + 1 < kVectors; ++v) row[v] = simd::load(rows + j * row_stride + v * kLanes);
    row[kVectors - 1] = simd::load(rows + j * row_stride + (kVectors - 1) * kLanes, last);
    for (int v = 0; v < kVectors; ++v) ask_for<kCount>(next + j * row_stride + v * kLanes);
    for (int q = 0; q < kCount; ++q) {
      Vec16 w = simd::broadcast(weights[q * weight_stride + j]);
      for (int v = 0; v < kVectors; ++v) sum[q][v] = simd::fma(w, row[v], sum[q][v]);
    }
  }
  for (int q = 0; q < kCount; ++q) {
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
  for (int j = 0; j < kPositions; ++j) {
    for (int v = 0; v < kLast; ++v) acc[j][v] = simd::load(rows + j * row_stride + v * kLanes);
    acc[j][kLast] = simd::load(rows + j * row_stride + kLast * kLanes, last);
  }
  for (int q = 0; q < num_queries; ++q) {
    Vec16 query[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      query[v] = simd::load(queries + q * kQueryStride + v * kLanes);
    }
    for (int j = 0; j < kPositions; ++j) {
      Vec16 w = simd::broadcast(weights[q * weight_stride + j]);
      for (int v = 0; v < kVectors; ++v) acc[j][v] = simd::fma(w, query[v], acc[j][v]);
    }
  }
  for (int j = 0; j < kPositions; ++j) {
    for (int v = 0; v < kLast; ++v) simd::store(rows + j * row_stride + v * kLanes, acc[j][v]);
    simd::store(rows + j * row_stride + kLast * kLanes, acc[j][kLast], last);
  }
}

}  // namespace tailrace::inline TR_ISA::attention_tiles
