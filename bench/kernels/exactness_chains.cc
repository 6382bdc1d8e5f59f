// Tiles are as much lower than the exact ones as the chains take registers. All else is as in
// kernels/cpu/gemm.cc: what is divided, and how finely, is not for the rule to say.
#include "bench/kernels/exactness_chains.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd.h"

namespace tailrace {
namespace {

using gemm::Form;
using gemm::kPanel;
using gemm::Pair;

constexpr int64_t kGrain = 256 * 1024;
constexpr int64_t kRowBlockElements = 64 * 1024;
constexpr int64_t kFloatBytes = sizeof(float);  // and those of a pair
constexpr int64_t kLine = 64;

struct Tile {
  const void* a = nullptr;
  int64_t a_stride = 0;  // floats or pairs
  const void* panel = nullptr;
  int64_t terms = 0;  // or pairs of them
  bool add_to_c = false;
  Matrix c;
  // What the second-level cache is asked for meanwhile; null: nothing.
  const std::byte* ahead = nullptr;
};

// kRows x 32 sums, each in kChains chains.
template <int kChains, int kRows>
struct Chains {
  Vec16 at[kChains][kRows][2];

  TR_INLINE void start(const Tile& t) {
    for (auto& chain : at) {
      for (auto& row : chain) row[0] = row[1] = simd::zero();
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) __builtin_prefetch(t.c.row(r) + v * kLanes, 1);
    }
  }
  TR_INLINE void finish(const Tile& t) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) {
        for (int width = kChains / 2; width >= 1; width /= 2) {
          for (int n = 0; n < width; ++n) at[n][r][v] = simd::add(at[n][r][v], at[n + width][r][v]);
        }
        const int64_t left = t.c.cols - v * kLanes;
        if (left <= 0) continue;
        float* c = t.c.row(r) + v * kLanes;
        Vec16 sum = at[0][r][v];
        if (t.add_to_c) sum = simd::add(simd::load(c, left), sum);
        simd::store(c, sum, left);
      }
    }
  }
};

template <int kChains, int kRows>
void compute_tile(const Tile& t) {
  Chains<kChains, kRows> sums;
  sums.start(t);
  const auto* a = static_cast<const float*>(t.a);
  const auto* panel = static_cast<const float*>(t.panel);
  const int64_t stride = t.a_stride;
  const auto add_products = [&](Vec16(&chain)[kRows][2]) __attribute__((always_inline)) {
    Vec16 b[2] = {simd::load(panel), simd::load(panel + kLanes)};
    if (kRows > 1) simd::keep(b[0]), simd::keep(b[1]);
    for (int r = 0; r < kRows; ++r) {
      const Vec16 x = simd::broadcast(a[r * stride]);
      for (int v = 0; v < 2; ++v) chain[r][v] = simd::fma(x, b[v], chain[r][v]);
    }
    ++a;
    panel += kPanel;
  };
  int64_t k = 0;
  for (; k + kChains <= t.terms; k += kChains) {
    for (auto& chain : sums.at) add_products(chain);
  }
  for (; k < t.terms; ++k) add_products(sums.at[0]);
  sums.finish(t);
}

#ifdef TR_HAS_PAIRS
// Adds one pair to kRows x 32 sums.
template <int kRows>
TR_PAIRS TR_INLINE void add_pair(const Pair* a, int64_t stride, const Pair* panel,
                                 Vec16 (&chain)[kRows][2]) {
  __m512i b[2] = {_mm512_loadu_si512(panel), _mm512_loadu_si512(panel + kLanes)};
  if (kRows > 1) {
    for (auto& vector : b) asm("" : "+v"(vector));  // as simd::keep()
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i x = _mm512_set1_epi32(static_cast<int>(a[r * stride]));
    for (int v = 0; v < 2; ++v) chain[r][v] = gemm::add_pairs(chain[r][v], x, b[v]);
  }
}

template <int kChains, int kRows>
TR_PAIRS void compute_pair_tile(const Tile& t) {
  Chains<kChains, kRows> sums;
  sums.start(t);
  const auto* ahead = t.ahead != nullptr ? t.ahead : static_cast<const std::byte*>(t.panel);
  const auto* a = static_cast<const Pair*>(t.a);
  const auto* panel = static_cast<const Pair*>(t.panel);
  int64_t k = 0;
  for (; k + kChains <= t.terms; k += kChains) {
    for (auto& chain : sums.at) {
      add_pair<kRows>(a++, t.a_stride, panel, chain);
      panel += kPanel;
      if constexpr (kRows > 1) {
        __builtin_prefetch(ahead, /*rw=*/0, /*locality=*/2);
      } else {
        // Without it the compiler makes two rounds at once, which read the panel out of its order:
        // 8 chains would take twice the time.
        asm volatile("");
      }
      ahead += kLine;
    }
  }
  for (; k < t.terms; ++k, ++a, panel += kPanel) add_pair<kRows>(a, t.a_stride, panel, sums.at[0]);
  sums.finish(t);
}

// Rows of A in pairs, as the exact product rounds them; returns what lies between two of them.
TR_PAIRS int64_t round_rows(ConstMatrix a, std::vector<Pair>& out) {
  const int64_t stride = round_up(round_up(a.cols, 2) / 2, kLanes) + kLanes;
  if (std::ssize(out) < a.rows * stride) out.resize(static_cast<size_t>(a.rows * stride));
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* from = a.row(r);
    for (int64_t i = 0; i < a.cols; i += 2 * kLanes)
      _mm512_storeu_si512(
          out.data() + r * stride + i / 2,
          gemm::round_neighbours(simd::load(from + i, a.cols - i),
                                 simd::load(from + i + kLanes, a.cols - i - kLanes)));
  }
  return stride;
}
#endif

// As many accumulators as the exact tile at most.
template <int kChains>
constexpr int kChainRows = std::max(1, static_cast<int>(gemm::kTileRows) / kChains);

using TileFunction = void (*)(const Tile&);
template <int kChains, int... kRow>
constexpr auto tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&compute_tile<kChains, kRow + 1>...};
}
#ifdef TR_HAS_PAIRS
template <int kChains, int... kRow>
constexpr auto pair_tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&compute_pair_tile<kChains, kRow + 1>...};
}
#endif

template <int kChains>
void multiply_part(const ChainsProduct& p, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                   int64_t panel_end) {
  constexpr int kMost = kChainRows<kChains>;
  constexpr std::make_integer_sequence<int, kMost> kHeights;
  // Without pairs there are no tiles of them.
  constexpr std::array<std::array<TileFunction, kMost>, 2> kTiles = {
      tile_functions<kChains>(kHeights),
#ifdef TR_HAS_PAIRS
      pair_tile_functions<kChains>(kHeights),
#endif
  };
  const bool pairs = p.form == Form::kPairs;
  const auto& tile_of = kTiles.at(pairs ? 1 : 0);
  const int64_t terms = pairs ? round_up(p.a.cols, 2) / 2 : p.a.cols;
  const int64_t panel_bytes = terms * kPanel * kFloatBytes;
  const int64_t block_rows =
      round_up(std::max<int64_t>(kRowBlockElements / std::max<int64_t>(terms, 1), 1), kMost);
  for (int64_t block = row_begin; block < row_end; block += block_rows) {
    const int64_t end = std::min(row_end, block + block_rows);
    const int64_t tiles = (end - block + kMost - 1) / kMost;
    const int64_t height = (end - block + tiles - 1) / tiles;
    const void* rows_of_a = p.a.row(block);
    int64_t stride = p.a.stride;
#ifdef TR_HAS_PAIRS
    thread_local std::vector<Pair> rounded;
    if (pairs) {
      stride = round_rows(p.a.slice_rows(block, end), rounded);
      rows_of_a = rounded.data();
    }
#endif
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const auto* b = static_cast<const std::byte*>(p.panels) + panel * panel_bytes;
      const Matrix columns =
          p.c.slice_cols(panel * kPanel, std::min(p.c.cols, (panel + 1) * kPanel));
      for (int64_t row = block; row < end; row += height) {
        const int64_t rows = std::min(height, end - row), tile = (row - block) / height;
        Tile t{.a = static_cast<const std::byte*>(rows_of_a) + (row - block) * stride * kFloatBytes,
               .a_stride = stride,
               .panel = b,
               .terms = terms,
               .add_to_c = p.add_to_c,
               .c = columns.slice_rows(row, row + rows)};
        // A panel of pairs has two lines a term, of which a tile asks for one.
        if (panel + 1 < panel_end && tile < 2) t.ahead = b + panel_bytes + tile * terms * kLine;
        tile_of[static_cast<size_t>(rows - 1)](t);
      }
    }
  }
}

template <int kChains>
void multiply_all(const Stream& stream, const ChainsProduct& p) {
  const int64_t panels = gemm::num_panels(p.c.cols), tiles = gemm::num_tiles(p.c.rows);
  const int64_t threads = num_threads(stream), work = p.c.rows * p.c.cols * p.a.cols;
  const bool by_panels =
      panels >= threads && (tiles < threads || (panels % threads == 0 && tiles < 4 * threads));
  const int64_t parts = by_panels ? panels : tiles;
  const int64_t grain = std::max<int64_t>(1, kGrain * parts / work);
  parallel_for(stream, parts, grain, [&](int64_t begin, int64_t end) {
    if (by_panels)
      multiply_part<kChains>(p, 0, p.c.rows, begin, end);
    else
      multiply_part<kChains>(p, begin * gemm::kTileRows, std::min(p.c.rows, end * gemm::kTileRows),
                             0, panels);
  });
}

}  // namespace

void multiply_in_chains(const Stream& stream, int chains, const ChainsProduct& product) {
  switch (chains) {
    case 2:
      return multiply_all<2>(stream, product);
    case 4:
      return multiply_all<4>(stream, product);
    case 8:
      return multiply_all<8>(stream, product);
  }
  TR_CHECK(false, "no tiles of {} chains", chains);
}

}  // namespace tailrace
