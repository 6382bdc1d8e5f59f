// The innermost part of a product (gemm.h): some rows of A times a panel of B or a few, with all
// sums in registers.
//
// Thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/memory.h"
#include "kernels/cpu/gemm_layout.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

constexpr int64_t kFloatBytes = sizeof(float);  // and those of a pair
constexpr int64_t kLine = 64;                   // bytes of a line of the caches
constexpr int64_t kNear = 512;                  // bytes that low tiles ask for ahead

struct Tile {
  const void* a = nullptr;
  int64_t a_stride = 0;
  const void* panel = nullptr;
  int64_t panel_stride = 0;  // elements
  int64_t k = 0;             // terms, or pairs of them
  const float* start = nullptr;
  int64_t start_stride = 0;
  const float* bias = nullptr;
  bool add_to_c = false;
  float* c = nullptr;
  int64_t c_stride = 0;
  // From here on a tile of pairs with three rows or more asks the second-level cache for as many
  // bytes as its panel has; null: for its own panel, which is there.
  const std::byte* ahead = nullptr;
  // A tile of one row or two asks it for its own panels so many bytes ahead; 0: it does not.
  int64_t near = 0;
};

// kRows x (kPanels * 32) sums in registers; all of C's columns exist. Unrolled at our word: where
// an index is not a constant, the compiler keeps the sums in memory before and behind the loop,
// which costs the highest tile a twentieth of its time.
template <int kRows, int kPanels>
struct Sums {
  static constexpr int kVectors = 2 * kPanels;
  Vec16 at[kRows][kVectors];

  // sum = f(sum, row, vector) for each.
  template <class F>
  TR_INLINE void for_each(const F& f) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) at[r][v] = f(at[r][v], r, v);
    }
  }
  TR_INLINE void start(const Tile& t) {
    if (t.start == nullptr) {
      for_each([](Vec16, int, int) { return simd::zero(); });
    } else {
      for_each([&](Vec16, int r, int v) {
        return simd::load(t.start + r * t.start_stride + v * kLanes);
      });
    }
  }
  // Asks for C while the sums are made; the second-level cache, because misses of the first one are
  // what A and the panel wait for.
  TR_INLINE static void fetch_c(const Tile& t) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        __builtin_prefetch(t.c + r * t.c_stride + v * kLanes, /*rw=*/0, /*locality=*/2);
    }
  }
  TR_INLINE void finish(const Tile& t) {
    if (t.bias != nullptr) {
      for_each(
          [&](Vec16 sum, int, int v) { return simd::add(sum, simd::load(t.bias + v * kLanes)); });
    }
    if (t.add_to_c) {
      for_each([&](Vec16 sum, int r, int v) {
        return simd::add(simd::load(t.c + r * t.c_stride + v * kLanes), sum);
      });
    }
    for_each([&](Vec16 sum, int r, int v) {
      simd::store(t.c + r * t.c_stride + v * kLanes, sum);
      return sum;
    });
  }
};

template <int kRows, int kPanels, int kChains>
TR_INLINE void start(const Tile& t, Sums<kRows, kPanels> (&chains)[kChains]) {
  chains[0].start(t);
  for (int n = 1; n < kChains; ++n) {
    chains[n].for_each([](Vec16, int, int) { return simd::zero(); });
  }
  Sums<kRows, kPanels>::fetch_c(t);
}
template <int kRows, int kPanels, int kChains>
TR_INLINE void finish(const Tile& t, Sums<kRows, kPanels> (&chains)[kChains]) {
  for (int width = kChains / 2; width >= 1; width /= 2) {
    for (int n = 0; n < width; ++n) {
      chains[n].for_each(
          [&](Vec16 sum, int r, int v) { return simd::add(sum, chains[n + width].at[r][v]); });
    }
  }
  chains[0].finish(t);
}

// One row or two wait for memory: there the processor's own prefetching ends with each page. In a
// cache the same instructions cost a sixth of the time, so that they are left out by a branch.
template <int kRows, int kPanels, class T>
TR_INLINE void ask_near(const T* panel, int64_t panel_stride, int64_t near) {
  if constexpr (kRows <= 2) {
    if (near == 0) return;
    for (int p = 0; p < kPanels; ++p) {
      const auto* lines = reinterpret_cast<const std::byte*>(panel + p * panel_stride) + near;
      for (int64_t i = 0; i < kPanel * static_cast<int64_t>(sizeof(T)); i += kLine)
        __builtin_prefetch(lines + i, /*rw=*/0, /*locality=*/2);
    }
  }
}

// Elements of A, a value of k after the other. Of rows that are apart every third one has an
// address of its own and the two behind it are found from it by a stride, as an instruction can:
// with one address for all, or one for each, they do not fit in the registers, and the highest tile
// of pairs loses a twentieth of its time.
template <class T, Layout kLayout, int kRows>
class RowsOfA {
 public:
  TR_INLINE explicit RowsOfA(const Tile& t) : stride_(t.a_stride) {
    for (int i = 0; i < kAddresses; ++i) at_[i] = static_cast<const T*>(t.a) + i * kEach * stride_;
  }
  TR_INLINE T row(int r) const {
    return kLayout == Layout::kColumns ? at_[0][r] : at_[r / kEach][r % kEach * stride_];
  }
  TR_INLINE void next() {
    for (auto& at : at_) {
      at += kLayout == Layout::kColumns ? kTileRows : 1;
      asm("" : "+r"(at));  // or the compiler makes one address of all again
    }
  }

 private:
  static constexpr int kEach = 3;
  static constexpr int kAddresses = kLayout == Layout::kColumns ? 1 : (kRows + kEach - 1) / kEach;
  int64_t stride_;
  const T* at_[kAddresses];
};

// Adds one term, or one pair of them, to all sums.
template <class T, Layout kLayout, int kRows, int kPanels>
TR_INLINE void add_products(RowsOfA<float, kLayout, kRows>& a, const T*& panel, const Tile& t,
                            Sums<kRows, kPanels>& sums) {
  constexpr int kVectors = 2 * kPanels;
  Vec16 b[kVectors];
  for (int p = 0; p < kPanels; ++p) {
    b[2 * p] = simd::load(panel + p * t.panel_stride);
    b[2 * p + 1] = simd::load(panel + p * t.panel_stride + kLanes);
  }
  ask_near<kRows, kPanels>(panel, t.panel_stride, t.near);
  if (kRows > 1) {
    for (auto& vector : b) simd::keep(vector);
  }
  for (int r = 0; r < kRows; ++r) {
    const Vec16 x = simd::broadcast(a.row(r));
    for (int v = 0; v < kVectors; ++v) sums.at[r][v] = simd::fma(x, b[v], sums.at[r][v]);
  }
  a.next();
  panel += kPanel;
}
#ifdef TR_HAS_PAIRS
template <Layout kLayout, int kRows, int kPanels>
TR_PAIRS TR_INLINE void add_products(RowsOfA<Pair, kLayout, kRows>& a, const Pair*& panel,
                                     const Tile& t, Sums<kRows, kPanels>& sums) {
  constexpr int kVectors = 2 * kPanels;
  const int64_t panel_stride = t.panel_stride / 2;
  __m512i b[kVectors];
  for (int p = 0; p < kPanels; ++p) {
    b[2 * p] = _mm512_loadu_si512(panel + p * panel_stride);
    b[2 * p + 1] = _mm512_loadu_si512(panel + p * panel_stride + kLanes);
  }
  ask_near<kRows, kPanels>(panel, panel_stride, t.near);
  if (kRows > 1) {
    for (auto& vector : b) asm("" : "+v"(vector));  // as simd::keep()
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i x = _mm512_set1_epi32(static_cast<int>(a.row(r)));
    for (int v = 0; v < kVectors; ++v) sums.at[r][v] = add_pairs(sums.at[r][v], x, b[v]);
  }
  a.next();
  panel += kPanel;
}
#endif

// From panels of T. A product has one chain a sum, k ascending: more would hide the latency of few
// rows as well, but joining them would round in other places than a larger tile does. What that
// costs is measured with more of them (bench/kernels/exactness_chains.h): term k, or the pair of
// number k, then belongs to chain k modulo kChains.
template <class T, Layout kLayout, int kRows, int kPanels, int kChains = 1>
void compute_tile(const Tile& t) {
  Sums<kRows, kPanels> chains[kChains];
  start(t, chains);
  RowsOfA<float, kLayout, kRows> a(t);
  const auto* panel = static_cast<const T*>(t.panel);
  int64_t k = 0;
  for (; k + kChains <= t.k; k += kChains) {
    for (auto& sums : chains) add_products(a, panel, t, sums);
  }
  for (; kChains > 1 && k < t.k; ++k) add_products(a, panel, t, chains[0]);
  finish(t, chains);
}

#ifdef TR_HAS_PAIRS
template <Layout kLayout, int kRows, int kPanels, int kChains = 1>
TR_PAIRS void compute_pair_tile(const Tile& t) {
  Sums<kRows, kPanels> chains[kChains];
  start(t, chains);
  const auto* ahead = t.ahead != nullptr ? t.ahead : static_cast<const std::byte*>(t.panel);
  RowsOfA<Pair, kLayout, kRows> a(t);
  const auto* panel = static_cast<const Pair*>(t.panel);
  int64_t k = 0;
  for (; k + kChains <= t.k; k += kChains) {
    for (auto& sums : chains) {
      add_products(a, panel, t, sums);
      if constexpr (kRows > 2) {
        // A pair of each column of a panel: two lines.
        __builtin_prefetch(ahead, /*rw=*/0, /*locality=*/2);
        __builtin_prefetch(ahead + kLine, /*rw=*/0, /*locality=*/2);
        ahead += 2 * kLine;
      }
    }
  }
  for (; kChains > 1 && k < t.k; ++k) add_products(a, panel, t, chains[0]);
  finish(t, chains);
}
#endif

using TileFunction = void (*)(const Tile&);

// One row or two leave most registers idle and wait for each other's result: take more panels.
// Eight independent sums, one row times eight vectors or two times four, are what it takes to hide
// four cycles on two ports.
constexpr int panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

// Columns [0, cols) of a tile whose panels have `padded` ones: zeros follow in a panel, and
// whatever follows in C stays.
inline void compute_edge(TileFunction compute, Tile t, int64_t rows, int64_t cols, int64_t padded) {
  constexpr int64_t kMostCols = panels_at_once(1) * kPanel;
  constexpr int64_t kMost = std::max(kTileRows * kPanel, 2 * kMostCols);
  alignas(kMemoryAlignment) float start[kMost] = {}, bias[kMostCols] = {}, c[kMost] = {};
  const auto copy = [&](const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(from + r * from_stride, cols, to + r * to_stride);
  };
  Tile inner = t;
  inner.c = c;
  inner.start_stride = inner.c_stride = padded;
  if (t.start != nullptr) {
    copy(t.start, t.start_stride, start, padded);
    inner.start = start;
  }
  if (t.bias != nullptr) {
    std::copy_n(t.bias, cols, bias);
    inner.bias = bias;
  }
  if (t.add_to_c) copy(t.c, t.c_stride, c, padded);
  compute(inner);
  copy(c, padded, t.c, t.c_stride);
}

}  // namespace tailrace::inline TR_ISA::gemm
