#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/gemm_copies.h"
#include "kernels/cpu/gemm_tiles.h"

namespace tailrace::inline TR_ISA::gemm {

namespace {

template <class T, Layout kLayout, int... kRow>
constexpr auto tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{
      &compute_tile<T, kLayout, kRow + 1, panels_at_once(kRow + 1)>...};
}
template <class T, Layout kLayout, int... kRow>
constexpr auto narrow_tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&compute_tile<T, kLayout, kRow + 1, 1>...};
}

#ifdef TR_HAS_PAIRS
template <Layout kLayout, int... kRow>
constexpr auto pair_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{
      &compute_pair_tile<kLayout, kRow + 1, panels_at_once(kRow + 1)>...};
}
template <Layout kLayout, int... kRow>
constexpr auto narrow_pair_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&compute_pair_tile<kLayout, kRow + 1, 1>...};
}
#endif

// Rows of the table: what A and the panels are; columns: the rows of a tile less one.
constexpr std::make_integer_sequence<int, static_cast<int>(kTileRows)> kHeights;
constexpr std::array kTileFunctions = {tile_functions<float, Layout::kRows>(kHeights),
                                       tile_functions<float, Layout::kColumns>(kHeights),
                                       tile_functions<Bf16, Layout::kRows>(kHeights),
#ifdef TR_HAS_PAIRS
                                       pair_functions<Layout::kRows>(kHeights),
                                       pair_functions<Layout::kColumns>(kHeights)
#endif
};
constexpr std::array kNarrowTileFunctions = {
    narrow_tile_functions<float, Layout::kRows>(kHeights),
    narrow_tile_functions<float, Layout::kColumns>(kHeights),
    narrow_tile_functions<Bf16, Layout::kRows>(kHeights),
#ifdef TR_HAS_PAIRS
    narrow_pair_functions<Layout::kRows>(kHeights),
    narrow_pair_functions<Layout::kColumns>(kHeights)
#endif
};

size_t table_row(const Product& g) {
  switch (g.form) {
    case Form::kFloats:
      return g.layout == Layout::kRows ? 0 : 1;
    case Form::kBf16:
      TR_CHECK(g.layout == Layout::kRows, "no tiles of columns for these panels");
      return 2;
    case Form::kPairs:
      TR_CHECK(kTileFunctions.size() > 3, "this instruction set has no pairs");
      return g.layout == Layout::kRows ? 3 : 4;
  }
  TR_CHECK(false, "no form");
}

// Some rows of A as tiles read them: where they are, or a copy in memory of the thread, which is as
// large as the largest copy that it has made.
class BlockOfA {
 public:
  // Rows [begin, end).
  BlockOfA(const Product& g, int64_t begin, int64_t end) : at_(g.a), stride_(g.a_stride) {
    const bool pairs = g.form == Form::kPairs;
    if (g.layout == Layout::kColumns) {
      const ConstMatrix columns(g.a + begin, g.k, end - begin, g.a_stride);
      // Tiles that are packed side by side would share a set of the cache if some lines did not lie
      // between two of them.
      stride_ = (pairs ? round_up(g.k, 2) / 2 : g.k) + 4;
      const int64_t tiles = num_tiles(end - begin), tile = stride_ * kTileRows;
      std::byte* memory = take(tiles * tile);
      if (pairs) {
        pack_columns<kTileRows>(columns, 0, tiles, tile, reinterpret_cast<Pair*>(memory));
      } else {
        pack_columns<kTileRows>(columns, 0, tiles, tile, reinterpret_cast<float*>(memory));
      }
      return;
    }
    const float* rows = g.a + begin * g.a_stride;
    at_ = rows;
    if (!pairs) return;
#ifdef TR_HAS_PAIRS
    // One line more than it takes: rows a power of two apart would share a set of the cache.
    stride_ = round_up(round_up(g.k, 2) / 2, kLanes) + kLanes;
    round_rows(rows, g.a_stride, end - begin, g.k,
               reinterpret_cast<Pair*>(take((end - begin) * stride_)), stride_);
#endif
  }
  // From one row to the next, in floats or pairs; with columns from one tile to the next, divided
  // by the rows of a tile.
  int64_t stride() const { return stride_; }
  const void* row(int64_t i) const {
    return static_cast<const std::byte*>(at_) + i * stride_ * kFloatBytes;
  }

 private:
  std::byte* take(int64_t elements) {
    struct alignas(kMemoryAlignment) Line {
      std::byte bytes[kMemoryAlignment];
    };
    thread_local std::vector<Line> memory;
    const auto lines = static_cast<size_t>(elements * kFloatBytes) / sizeof(Line) + 1;
    if (memory.size() < lines) memory.resize(lines);
    at_ = memory.data();
    return memory.front().bytes;
  }

  const void* at_;
  int64_t stride_;
};

// Outputs of rows [row_begin, row_end) and whole panels [panel_begin, panel_end).
void multiply_part(const Product& g, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                   int64_t panel_end, WorkPulse& pulse) {
  // From outside in: a block of A that stays in the second-level cache, a panel of B, the tiles of
  // the block. So B comes from memory once a block, and A stays near.
  const int64_t panel_stride =
      g.panel_stride != 0 ? g.panel_stride : panels_size(g.form, kPanel, g.k);
  const int64_t element_bytes = g.form == Form::kFloats ? sizeof(float) : sizeof(Bf16);
  const bool pairs = g.form == Form::kPairs;
  const auto* panels_begin = static_cast<const std::byte*>(g.panels);
  const size_t kind = table_row(g);
  const int64_t terms = pairs ? round_up(g.k, 2) / 2 : g.k;
  const int64_t block_rows =
      round_up(std::max<int64_t>(kRowBlockElements / std::max<int64_t>(terms, 1), 1), kTileRows);
  for (int64_t block = row_begin; block < row_end; block += block_rows) {
    const int64_t block_end = std::min(row_end, block + block_rows);
    // Tiles of nearly equal height; packed tiles have the height that they were packed with.
    const int64_t tiles = num_tiles(block_end - block);
    const int64_t height =
        g.layout == Layout::kColumns ? kTileRows : (block_end - block + tiles - 1) / tiles;
    const int64_t at_once = panels_at_once(std::min(height, block_end - block));
    const BlockOfA a(g, block, block_end);
    for (int64_t panel = panel_begin; panel < panel_end;) {
      // At the end of the panels, and in a last tile of another height than the others, one panel
      // at a time. That is only slower: an element's sum is the same in any tile.
      const int64_t panels = panel + at_once <= panel_end ? at_once : 1;
      for (int64_t row = block; row < block_end; row += height) {
        const int64_t rows = std::min(height, block_end - row);
        Tile t;
        t.a = a.row(row - block);
        t.a_stride = a.stride();
        const std::byte* first_panel = panels_begin + panel * panel_stride * element_bytes;
        t.panel = first_panel;
        t.panel_stride = panel_stride;
        t.k = terms;
        const int64_t col = panel * kPanel;
        if (g.start != nullptr) t.start = g.start + row * g.start_stride + col;
        t.start_stride = g.start_stride;
        if (g.bias != nullptr) t.bias = g.bias + col;
        t.add_to_c = g.add_to_c;
        t.c = g.c + row * g.c_stride + col;
        t.c_stride = g.c_stride;
        // The first tile asks for the next panel, for which it would else wait.
        if (pairs && panels == 1 && panel + 1 < panel_end && row == block)
          t.ahead = first_panel + panel_stride * element_bytes;
        if (g.from_memory) t.near = kNear;
        const bool wide = panels > 1 && panels_at_once(rows) == panels;
        const auto index = static_cast<size_t>(rows - 1);
        const auto compute = [&](TileFunction function, int64_t cols, int64_t padded) {
          if (cols >= padded) {
            function(t);
          } else {
            compute_edge(function, t, rows, cols, padded);
          }
        };
        if (wide) {
          compute(kTileFunctions[kind][index], g.cols - col, panels * kPanel);
        } else {
          for (int64_t p = 0; p < panels; ++p) {
            compute(kNarrowTileFunctions[kind][index], g.cols - col - p * kPanel, kPanel);
            t.panel = first_panel + (p + 1) * panel_stride * element_bytes;
            t.c += kPanel;
            if (t.start != nullptr) t.start += kPanel;
            if (t.bias != nullptr) t.bias += kPanel;
          }
        }
      }
      panel += panels;
      pulse.add((block_end - block) * panels * kPanel * g.k);
    }
  }
}

}  // namespace

void multiply(const Stream& stream, const Product& g) {
  if (g.rows == 0 || g.cols == 0) return;
  const int64_t panels = num_panels(g.cols);
  const int64_t tiles = num_tiles(g.rows);
  const int64_t threads = num_threads(stream);
  const int64_t work = g.rows * g.cols * std::max<int64_t>(g.k, 1);
  // By panels each thread keeps its part of B in its cache, by tiles its part of A. Few rows (a
  // decode step): B is the larger.
  const bool by_panels =
      panels >= threads && (tiles < threads || (panels % threads == 0 && tiles < 4 * threads));
  if (by_panels) {
    const int64_t grain = std::max<int64_t>(1, kGrain * panels / work);
    parallel_for(stream, panels, grain, [&](int64_t begin, int64_t end) {
      WorkPulse pulse;
      multiply_part(g, 0, g.rows, begin, end, pulse);
    });
  } else {
    // Whole tiles, since lower ones are slower.
    const int64_t grain = std::max<int64_t>(1, kGrain * tiles / work);
    parallel_for(stream, tiles, grain, [&](int64_t begin, int64_t end) {
      WorkPulse pulse;
      multiply_part(g, begin * kTileRows, std::min(g.rows, end * kTileRows), 0, panels, pulse);
    });
  }
}

void multiply_groups(const Stream& stream, const Product& all, std::span<const int32_t> offsets,
                     size_t panels_bytes) {
  if (all.rows == 0 || all.cols == 0) return;
  // All groups in one loop, cut through each of them or between their rows: groups are unequal,
  // and as many loops would wait for their threads as often.
  const auto part = [&](int64_t row_begin, int64_t row_end, int64_t panel_begin,
                        int64_t panel_end) {
    WorkPulse pulse;
    Product group = all;
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      const int64_t begin = std::max<int64_t>(row_begin, offsets[i]);
      const int64_t end = std::min<int64_t>(row_end, offsets[i + 1]);
      if (begin >= end) continue;
      group.panels = static_cast<const std::byte*>(all.panels) + i * panels_bytes;
      multiply_part(group, begin, end, panel_begin, panel_end, pulse);
    }
  };
  const int64_t panels = num_panels(all.cols), threads = num_threads(stream);
  const int64_t work = all.rows * all.cols * std::max<int64_t>(all.k, 1);
  // Cut between rows two threads read one group's B.
  const bool by_panels =
      panels >= threads && (panels % threads == 0 || all.rows < 4 * threads * kTileRows);
  if (by_panels) {
    const int64_t grain = std::max<int64_t>(1, kGrain * panels / work);
    parallel_for(stream, panels, grain,
                 [&](int64_t begin, int64_t end) { part(0, all.rows, begin, end); });
  } else {
    const int64_t grain = std::max<int64_t>(1, kGrain * all.rows / work);
    parallel_for(stream, all.rows, grain,
                 [&](int64_t begin, int64_t end) { part(begin, end, 0, panels); });
  }
}

}  // namespace tailrace::inline TR_ISA::gemm
