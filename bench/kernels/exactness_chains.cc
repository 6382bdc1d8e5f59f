// Tiles are those of the exact product (kernels/cpu/gemm_tiles.h), as much lower as the chains take
// registers. All else is as in kernels/cpu/gemm.cc: what is divided, and how finely, is not for the
// rule to say.
#include "bench/kernels/exactness_chains.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/gemm_copies.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/simd.h"

namespace tailrace {
namespace {

using gemm::Form;
using gemm::kPanel;
using gemm::Layout;
using gemm::Pair;
using gemm::Tile;
using gemm::TileFunction;

// As many accumulators as the exact tile at most.
template <int kChains>
constexpr int kChainRows = std::max(1, static_cast<int>(gemm::kTileRows) / kChains);

template <int kChains, int... kRow>
constexpr auto tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{
      &gemm::compute_tile<float, Layout::kRows, kRow + 1, /*kPanels=*/1, kChains>...};
}
#ifdef TR_HAS_PAIRS
template <int kChains, int... kRow>
constexpr auto pair_tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{
      &gemm::compute_pair_tile<Layout::kRows, kRow + 1, /*kPanels=*/1, kChains>...};
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
  const int64_t panel_bytes = terms * kPanel * gemm::kFloatBytes;
  const int64_t block_rows =
      round_up(std::max<int64_t>(gemm::kRowBlockElements / std::max<int64_t>(terms, 1), 1), kMost);
  for (int64_t block = row_begin; block < row_end; block += block_rows) {
    const int64_t end = std::min(row_end, block + block_rows);
    const int64_t tiles = (end - block + kMost - 1) / kMost;
    const int64_t height = (end - block + tiles - 1) / tiles;
    const void* rows_of_a = p.a.row(block);
    int64_t stride = p.a.stride;
#ifdef TR_HAS_PAIRS
    thread_local std::vector<Pair> rounded;
    if (pairs) {
      // As the exact product has it.
      stride = round_up(terms, kLanes) + kLanes;
      rounded.resize(static_cast<size_t>(std::max(std::ssize(rounded), (end - block) * stride)));
      gemm::round_rows(p.a.row(block), p.a.stride, end - block, p.a.cols, rounded.data(), stride);
      rows_of_a = rounded.data();
    }
#endif
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const auto* b = static_cast<const std::byte*>(p.panels) + panel * panel_bytes;
      const int64_t col = panel * kPanel, cols = p.c.cols - col;
      for (int64_t row = block; row < end; row += height) {
        const int64_t rows = std::min(height, end - row);
        Tile t;
        t.a = static_cast<const std::byte*>(rows_of_a) + (row - block) * stride * gemm::kFloatBytes;
        t.a_stride = stride;
        t.panel = b;
        t.k = terms;
        t.add_to_c = p.add_to_c;
        t.c = p.c.row(row) + col;
        t.c_stride = p.c.stride;
        if (panel + 1 < panel_end && row == block) t.ahead = b + panel_bytes;
        const TileFunction compute = tile_of[static_cast<size_t>(rows - 1)];
        if (cols >= kPanel)
          compute(t);
        else
          gemm::compute_edge(compute, t, rows, cols, kPanel);
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
  const int64_t grain = std::max<int64_t>(1, gemm::kGrain * parts / work);
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
