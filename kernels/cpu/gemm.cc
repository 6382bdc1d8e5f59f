#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"

namespace tailrace::inline TR_ISA::gemm {

namespace {

using simd::fma;

// Below this many multiply-adds a thread costs more than it saves.
// A core with two AVX-512 units does at best 32 in a cycle: this is 8192 cycles, a few
// microseconds, about what waking a thread and meeting it again costs.
constexpr int64_t kGrain = 256 * 1024;
// Floats of A that stay in the second-level cache while all panels pass by.
constexpr int64_t kRowBlockFloats = 64 * 1024;

struct Tile {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const void* panel = nullptr;
  int64_t panel_stride = 0;  // elements
  int64_t k = 0;
  const float* start = nullptr;
  int64_t start_stride = 0;
  const float* bias = nullptr;
  bool add_to_c = false;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t cols = 0;  // columns that exist, from the first of these panels
};

// Rounds over k between two tests for its end, which cost the highest tile 7 % of its time. The
// lower ones gain nothing by a second round.
constexpr int rounds_at_once(int rows) { return rows == kTileRows ? 2 : 1; }

// kRows x (kPanels * 32) outputs in registers, from panels of T.
template <class T, Layout kLayout, int kRows, int kPanels>
void compute_tile(const Tile& t) {
  constexpr int kVectors = 2 * kPanels;
  Vec16 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = t.start == nullptr
                      ? simd::zero()
                      : simd::load(t.start + r * t.start_stride + v * kLanes, t.cols - v * kLanes);
    }
  }
  const float* a = t.a;
  const auto* panel = static_cast<const T*>(t.panel);
  const int64_t a_stride = t.a_stride, panel_stride = t.panel_stride;
  auto add_products = [&]() __attribute__((always_inline)) {
    Vec16 b[kVectors];
    for (int p = 0; p < kPanels; ++p) {
      b[2 * p] = simd::load(panel + p * panel_stride);
      b[2 * p + 1] = simd::load(panel + p * panel_stride + kLanes);
    }
    if (kRows > 1) {
      for (auto& vector : b) simd::keep(vector);
    }
    for (int r = 0; r < kRows; ++r) {
      // One chain a sum, k ascending: more chains would hide the latency of few rows as well, but
      // joining them would round in other places than a larger tile does.
      Vec16 x = simd::broadcast(kLayout == Layout::kTiles ? a[r] : a[r * a_stride]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(x, b[v], acc[r][v]);
    }
    a += kLayout == Layout::kTiles ? kTileRows : 1;
    panel += kPanel;
  };
  constexpr int kRounds = rounds_at_once(kRows);
  int64_t k = 0;
  for (; k + kRounds <= t.k; k += kRounds) {
    for (int round = 0; round < kRounds; ++round) add_products();
  }
  for (; k < t.k; ++k) add_products();
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      int64_t left = t.cols - v * kLanes;
      // A panel is padded to 32 columns; C is not.
      if (left <= 0) continue;
      Vec16 sum = acc[r][v];
      if (t.bias != nullptr) sum = simd::add(sum, simd::load(t.bias + v * kLanes, left));
      float* c = t.c + r * t.c_stride + v * kLanes;
      if (t.add_to_c) sum = simd::add(simd::load(c, left), sum);
      simd::store(c, sum, left);
    }
  }
}

using TileFunction = void (*)(const Tile&);

// One row or two leave most registers idle and wait for each other's result: take more panels.
// Eight independent sums, one row times eight vectors or two times four, are what it takes to hide
// four cycles on two ports.
constexpr int panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

template <class T, Layout kLayout, int... kRow>
constexpr auto tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{
      &compute_tile<T, kLayout, kRow + 1, panels_at_once(kRow + 1)>...};
}
template <class T, Layout kLayout, int... kRow>
constexpr auto narrow_tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&compute_tile<T, kLayout, kRow + 1, 1>...};
}

// Rows of the table: what A and the panels are; columns: the rows of a tile less one.
constexpr std::make_integer_sequence<int, static_cast<int>(kTileRows)> kHeights;
constexpr std::array kTileFunctions = {tile_functions<float, Layout::kRows>(kHeights),
                                       tile_functions<float, Layout::kTiles>(kHeights),
                                       tile_functions<Bf16, Layout::kRows>(kHeights)};
constexpr std::array kNarrowTileFunctions = {narrow_tile_functions<float, Layout::kRows>(kHeights),
                                             narrow_tile_functions<float, Layout::kTiles>(kHeights),
                                             narrow_tile_functions<Bf16, Layout::kRows>(kHeights)};

size_t table_row(const Product& g) {
  if (g.panels_dtype == Dtype::kF32) return g.layout == Layout::kRows ? 0 : 1;
  TR_CHECK(g.panels_dtype == Dtype::kBF16 && g.layout == Layout::kRows,
           "no tiles for these panels");
  return 2;
}

// Outputs of rows [row_begin, row_end) and whole panels [panel_begin, panel_end).
void multiply_part(const Product& g, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                   int64_t panel_end, WorkPulse& pulse) {
  // From outside in: a block of A that stays in the second-level cache, a panel of B, the tiles of
  // the block. So B comes from memory once a block, and A stays near.
  const int64_t panel_stride = g.panel_stride != 0 ? g.panel_stride : g.k * kPanel;
  const int64_t element_bytes = size_of(g.panels_dtype);
  const auto* panels_begin = static_cast<const std::byte*>(g.panels);
  const size_t kind = table_row(g);
  const int64_t block_rows =
      round_up(std::max<int64_t>(kRowBlockFloats / std::max<int64_t>(g.k, 1), 1), kTileRows);
  for (int64_t block = row_begin; block < row_end; block += block_rows) {
    const int64_t block_end = std::min(row_end, block + block_rows);
    // Tiles of nearly equal height; packed tiles have the height that they were packed with.
    const int64_t tiles = num_tiles(block_end - block);
    const int64_t height =
        g.layout == Layout::kTiles ? kTileRows : (block_end - block + tiles - 1) / tiles;
    const int64_t at_once = panels_at_once(std::min(height, block_end - block));
    for (int64_t panel = panel_begin; panel < panel_end;) {
      // At the end of the panels, and in a last tile of another height than the others, one panel
      // at a time. That is only slower: an element's sum is the same in any tile.
      const int64_t panels = panel + at_once <= panel_end ? at_once : 1;
      for (int64_t row = block; row < block_end; row += height) {
        const int64_t rows = std::min(height, block_end - row);
        Tile t;
        t.a = g.layout == Layout::kTiles ? g.a + row * g.k : g.a + row * g.a_stride;
        t.a_stride = g.a_stride;
        const std::byte* first_panel = panels_begin + panel * panel_stride * element_bytes;
        t.panel = first_panel;
        t.panel_stride = panel_stride;
        t.k = g.k;
        const int64_t col = panel * kPanel;
        if (g.start != nullptr) t.start = g.start + row * g.start_stride + col;
        t.start_stride = g.start_stride;
        if (g.bias != nullptr) t.bias = g.bias + col;
        t.add_to_c = g.add_to_c;
        t.c = g.c + row * g.c_stride + col;
        t.c_stride = g.c_stride;
        const bool wide = panels > 1 && panels_at_once(rows) == panels;
        const auto index = static_cast<size_t>(rows - 1);
        if (wide) {
          t.cols = std::min(g.cols - col, panels * kPanel);
          kTileFunctions[kind][index](t);
        } else {
          for (int64_t p = 0; p < panels; ++p) {
            t.cols = std::min(g.cols - col - p * kPanel, kPanel);
            kNarrowTileFunctions[kind][index](t);
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
    // Whole tiles, because packed A can only be cut there.
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

void pack_panels(const Stream& stream, ConstMatrix b, float* panels) {
  const int64_t k = b.rows;
  // A copied float costs more than a multiply-add on one that is in a register, so a thread is
  // worth it for fewer; and one that had nothing to do for so long would sleep when the product
  // comes.
  const int64_t grain = std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(k * kPanel, 1));
  parallel_for(stream, num_panels(b.cols), grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      float* out = panels + panel * k * kPanel;
      const int64_t cols = std::min(kPanel, b.cols - panel * kPanel);
      for (int64_t r = 0; r < k; ++r, out += kPanel) {
        const float* in = b.row(r) + panel * kPanel;
        simd::store(out, simd::load(in, cols));
        // Columns that do not exist become zeros: load() reads no lane from behind the row's end.
        simd::store(out + kLanes, simd::load(in + kLanes, cols - kLanes));
      }
    }
  });
}

namespace {

void copy_to(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }
void copy_to(const float* from, int64_t count, Bf16* to) {
  std::transform(from, from + count, to, to_bf16);
}
// Columns [first, first + 32) of B for k in [begin, begin + 16), as [16][kPanel]; zeros where B,
// which is given as [cols, k], ends.
void transpose_square(ConstMatrix b, int64_t first, int64_t begin, float* square) {
  for (int64_t half = 0; half < kPanel; half += kLanes) {
    // Whole 16 x 16 squares only, because transpose16() reads and writes all of one.
    if (first + half + kLanes <= b.rows && begin + kLanes <= b.cols) {
      simd::transpose16(b.row(first + half) + begin, b.stride, square + half, kPanel);
      continue;
    }
    for (int64_t i = 0; i < kLanes; ++i) {
      for (int64_t c = 0; c < kLanes; ++c) {
        const int64_t row = first + half + c, k = begin + i;
        square[i * kPanel + half + c] = row < b.rows && k < b.cols ? b.row(row)[k] : 0.0f;
      }
    }
  }
}

}  // namespace

template <class T>
void pack_panels_transposed(const Stream& stream, ConstMatrix b, T* panels) {
  const int64_t k = b.cols;
  const int64_t grain = std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(k * kPanel, 1));
  parallel_for(stream, num_panels(b.rows), grain, [&](int64_t begin, int64_t end) {
    alignas(kMemoryAlignment) float square[kLanes * kPanel];
    for (int64_t panel = begin; panel < end; ++panel) {
      T* out = panels + panel * k * kPanel;
      for (int64_t i = 0; i < k; i += kLanes) {
        transpose_square(b, panel * kPanel, i, square);
        copy_to(square, std::min(kLanes, k - i) * kPanel, out + i * kPanel);
      }
    }
  });
}
template void pack_panels_transposed(const Stream&, ConstMatrix, float*);
template void pack_panels_transposed(const Stream&, ConstMatrix, Bf16*);

template <class T>
void unpack_panels(const Stream& stream, const T* panels, int64_t first, Matrix b) {
  const int64_t k = b.cols, last = first + b.rows;
  const int64_t first_panel = first / kPanel;
  const int64_t grain = std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(k * kPanel, 1));
  parallel_for(stream, num_panels(last) - first_panel, grain, [&](int64_t begin, int64_t end) {
    // Some lines of each row at once: rows may be a power of two apart, and then the lines of all
    // of them are in one set of the cache.
    constexpr int64_t kBlock = 8 * kLanes;
    alignas(kMemoryAlignment) float block[kBlock * kPanel] = {}, turned[kPanel * kBlock];
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      const int64_t panel_row = panel * kPanel;
      const int64_t row_begin = std::max(first, panel_row),
                    row_end = std::min(last, panel_row + kPanel);
      for (int64_t i = 0; i < k; i += kBlock) {
        const T* in = panels + panel_row * k + i * kPanel;
        const int64_t count = std::min(kBlock, k - i);
        for (int64_t j = 0; j < count * kPanel; ++j) block[j] = to_float(in[j]);
        for (int64_t j = 0; j < count; j += kLanes) {
          for (int64_t c = 0; c < kPanel; c += kLanes)
            simd::transpose16(block + j * kPanel + c, kPanel, turned + c * kBlock + j, kBlock);
        }
        for (int64_t row = row_begin; row < row_end; ++row)
          std::copy_n(turned + (row - panel_row) * kBlock, count, b.row(row - first) + i);
      }
    }
  });
}
template void unpack_panels(const Stream&, const float*, int64_t, Matrix);
template void unpack_panels(const Stream&, const Bf16*, int64_t, Matrix);

template <class T>
void transpose_panels(const Stream& stream, const T* panels, int64_t cols, int64_t k,
                      float* transposed) {
  // A panel of the result holds 32 values of k for each column.
  const int64_t grain = std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(cols * kPanel, 1));
  parallel_for(stream, num_panels(k), grain, [&](int64_t begin, int64_t end) {
    alignas(kMemoryAlignment) float block[kPanel * kPanel], turned[kPanel * kPanel];
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel, count = std::min(kPanel, k - first);
      float* out = transposed + panel * cols * kPanel;
      for (int64_t col = 0; col < cols; col += kPanel, out += kPanel * kPanel) {
        const T* in = panels + col * k + first * kPanel;
        for (int64_t i = 0; i < count * kPanel; ++i) block[i] = to_float(in[i]);
        // Values of k that do not exist become zeros.
        std::fill(block + count * kPanel, block + kPanel * kPanel, 0.0f);
        for (int64_t r = 0; r < kPanel; r += kLanes) {
          for (int64_t c = 0; c < kPanel; c += kLanes)
            simd::transpose16(block + r * kPanel + c, kPanel, turned + c * kPanel + r, kPanel);
        }
        std::copy_n(turned, std::min(kPanel, cols - col) * kPanel, out);
      }
    }
  });
}
template void transpose_panels(const Stream&, const float*, int64_t, int64_t, float*);
template void transpose_panels(const Stream&, const Bf16*, int64_t, int64_t, float*);

void pack_tiles(const Stream& stream, ConstMatrix a, float* tiles) {
  const int64_t k = a.rows;
  const int64_t grain = std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(k * kTileRows, 1));
  parallel_for(stream, num_tiles(a.cols), grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      float* out = tiles + tile * k * kTileRows;
      const int64_t rows = std::min(kTileRows, a.cols - tile * kTileRows);
      for (int64_t r = 0; r < k; ++r, out += kTileRows) {
        // kTileRows is less than a vector: the store is masked, because the row of the next k
        // begins right behind it.
        simd::store(out, simd::load(a.row(r) + tile * kTileRows, rows), kTileRows);
      }
    }
  });
}

}  // namespace tailrace::inline TR_ISA::gemm
