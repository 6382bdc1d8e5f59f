#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/isa.h"
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
constexpr int64_t kFloatBytes = sizeof(float);  // and those of a pair
constexpr int64_t kLine = 64;                   // bytes of a line of the caches
constexpr int64_t kNear = 512;                  // bytes that low tiles ask for ahead
// Floats or pairs of A that stay in the second-level cache while all panels pass by.
constexpr int64_t kRowBlockElements = 64 * 1024;

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
  // What the second-level cache is asked for meanwhile, a line a round of k; null: nothing.
  const std::byte* ahead = nullptr;
  // Of one row or two: so many bytes ahead of the panels it is asked for more of them; 0: it is
  // not.
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
  // Asks for C while the sums are made.
  TR_INLINE static void fetch_c(const Tile& t) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) __builtin_prefetch(t.c + r * t.c_stride + v * kLanes, 1);
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

// From panels of T.
template <class T, Layout kLayout, int kRows, int kPanels>
void compute_tile(const Tile& t) {
  constexpr int kVectors = 2 * kPanels;
  Sums<kRows, kPanels> sums;
  sums.start(t);
  sums.fetch_c(t);
  RowsOfA<float, kLayout, kRows> a(t);
  const auto* panel = static_cast<const T*>(t.panel);
  const int64_t panel_stride = t.panel_stride;
  for (int64_t k = 0; k < t.k; ++k) {
    Vec16 b[kVectors];
    for (int p = 0; p < kPanels; ++p) {
      b[2 * p] = simd::load(panel + p * panel_stride);
      b[2 * p + 1] = simd::load(panel + p * panel_stride + kLanes);
    }
    ask_near<kRows, kPanels>(panel, panel_stride, t.near);
    if (kRows > 1) {
      for (auto& vector : b) simd::keep(vector);
    }
    for (int r = 0; r < kRows; ++r) {
      // One chain a sum, k ascending: more chains would hide the latency of few rows as well, but
      // joining them would round in other places than a larger tile does.
      const Vec16 x = simd::broadcast(a.row(r));
      for (int v = 0; v < kVectors; ++v) sums.at[r][v] = fma(x, b[v], sums.at[r][v]);
    }
    a.next();
    panel += kPanel;
  }
  sums.finish(t);
}

#ifdef TR_HAS_PAIRS
template <Layout kLayout, int kRows, int kPanels>
TR_PAIRS void compute_pair_tile(const Tile& t) {
  constexpr int kVectors = 2 * kPanels;
  Sums<kRows, kPanels> sums;
  sums.start(t);
  sums.fetch_c(t);
  const auto* ahead = t.ahead != nullptr ? t.ahead : static_cast<const std::byte*>(t.panel);
  RowsOfA<Pair, kLayout, kRows> a(t);
  const auto* panel = static_cast<const Pair*>(t.panel);
  const int64_t panel_stride = t.panel_stride / 2;
  for (int64_t k = 0; k < t.k; ++k) {
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
    if constexpr (kRows > 2) {
      __builtin_prefetch(ahead, /*rw=*/0, /*locality=*/2);
      ahead += kLine;
    }
  }
  sums.finish(t);
}

// Rows of A, rounded: pairs out[r * stride + k / 2], zeros behind k to the next whole vector.
TR_PAIRS void round_rows(const float* a, int64_t a_stride, int64_t rows, int64_t k, Pair* out,
                         int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, a += a_stride, out += stride) {
    for (int64_t i = 0; i < k; i += 2 * kLanes)
      _mm512_storeu_si512(
          out + i / 2,
          round_neighbours(simd::load(a + i, k - i), simd::load(a + i + kLanes, k - i - kLanes)));
  }
}
#endif

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

// Panels or tiles [first, last) of kWidth columns of b side by side, each of which has `each`
// elements: rows of k for floats, or pairs of two rows. Columns that do not exist become zeros:
// load() reads no lane from behind the row's end. A tile has fewer columns than a vector, and the
// row of the next k begins right behind it.
template <int64_t kWidth>
void pack_columns(ConstMatrix b, int64_t first, int64_t last, int64_t each, float* out) {
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t i = first; i < last; ++i) {
      const float* in = b.row(r) + i * kWidth;
      for (int64_t c = 0; c < kWidth; c += kLanes)
        simd::store(out + i * each + r * kWidth + c, simd::load(in + c, b.cols - i * kWidth - c),
                    kWidth - c);
    }
  }
}
#ifdef TR_HAS_PAIRS
template <int64_t kWidth>
TR_PAIRS void pack_columns(ConstMatrix b, int64_t first, int64_t last, int64_t each, Pair* out) {
  // Rows of which some columns are read in one go are apart: no processor asks for them by itself.
  constexpr int64_t kAhead = 16;
  for (int64_t r = 0; r < b.rows; r += 2) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t c = 0; c < kWidth; c += kLanes) {
        const int64_t col = i * kWidth + c, left = b.cols - col;
        for (int64_t next = r + kAhead; next < r + kAhead + 2; ++next)
          __builtin_prefetch(b.row(next) + col, /*rw=*/0, /*locality=*/2);
        const Vec16 even = simd::load(b.row(r) + col, left);
        const Vec16 odd = r + 1 < b.rows ? simd::load(b.row(r + 1) + col, left) : simd::zero();
        _mm512_mask_storeu_epi32(out + i * each + r / 2 * kWidth + c,
                                 simd::first_lanes(kWidth - c).bits, pair_up(even, odd));
      }
    }
  }
}
#else
template <int64_t kWidth>
void pack_columns(ConstMatrix, int64_t, int64_t, int64_t, Pair*) {
  TR_CHECK(false, "this instruction set has no pairs");
}
#endif

// A block of A as tiles read it, if not as it is: as large as the largest that the thread has met.
class BlockOfA {
 public:
  // Rows [begin, end).
  BlockOfA(const Product& g, int64_t begin, int64_t end) : at_(g.a), stride_(g.a_stride) {
    const bool pairs = g.form == Form::kPairs;
    const auto* a = static_cast<const float*>(g.a);
    if (g.layout == Layout::kColumns) {
      const ConstMatrix columns(a + begin, g.k, end - begin, g.a_stride);
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
    at_ = a + begin * g.a_stride;
    if (!pairs) return;
#ifdef TR_HAS_PAIRS
    // One line more than it takes: rows a power of two apart would share a set of the cache.
    stride_ = round_up(round_up(g.k, 2) / 2, kLanes) + kLanes;
    round_rows(a + begin * g.a_stride, g.a_stride, end - begin, g.k,
               reinterpret_cast<Pair*>(take((end - begin) * stride_)), stride_);
#endif
  }
  // What lies between two rows, and with columns the twelfth part of what lies between two tiles.
  int64_t stride() const { return stride_; }
  const void* row(int64_t i) const {
    return static_cast<const std::byte*>(at_) + i * stride_ * kFloatBytes;
  }

 private:
  std::byte* take(int64_t elements) {
    thread_local Buffer memory;
    const auto size = static_cast<size_t>(elements * kFloatBytes);
    if (memory.size() < size) memory = Buffer(size);
    at_ = memory.data();
    return memory.data();
  }

  const void* at_;
  int64_t stride_;
};

// Columns [0, cols) of a tile whose panels have `padded` ones: zeros follow in a panel, and
// whatever follows in C stays.
void compute_edge(TileFunction compute, Tile t, int64_t rows, int64_t cols, int64_t padded) {
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
        // A panel of pairs has two lines a term. The first two tiles ask for the next panel, which
        // the first tile would else wait for.
        const int64_t tile = (row - block) / height;
        if (pairs && panels == 1 && panel + 1 < panel_end && tile < 2)
          t.ahead = first_panel + panel_stride * element_bytes + tile * terms * kLine;
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

Form form_of(Dtype weight) {
  if (weight == Dtype::kF32) return Form::kFloats;
  TR_CHECK(weight == Dtype::kBF16, "weights are of float32 or bfloat16");
#ifdef TR_HAS_PAIRS
  if (isa() == Isa::kAvx512Bf16) return Form::kPairs;
#endif
  return Form::kBf16;
}

namespace {

// Of `count` panels or tiles whose elements are `each`. A copied float costs more than a
// multiply-add on one that is in a register, so a thread is worth it for fewer; and one that had
// nothing to do for so long would sleep when the product comes.
int64_t copy_grain(int64_t each) {
  return std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(each, 1));
}

template <int64_t kWidth, class Element>
void pack_all(const Stream& stream, ConstMatrix b, Element* out) {
  const int64_t each = (std::is_same_v<Element, Pair> ? (b.rows + 1) / 2 : b.rows) * kWidth;
  const int64_t count = (b.cols + kWidth - 1) / kWidth;
  // So many side by side: a row of one is a line or less, and lines are far apart.
  constexpr int64_t kAtOnce = 16;
  parallel_for(stream, count, copy_grain(each), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kAtOnce)
      pack_columns<kWidth>(b, i, std::min(i + kAtOnce, end), each, out);
  });
}

}  // namespace

void pack_panels(const Stream& stream, ConstMatrix b, float* panels) {
  pack_all<kPanel>(stream, b, panels);
}
void pack_panels(const Stream& stream, ConstMatrix b, Pair* panels) {
  pack_all<kPanel>(stream, b, panels);
}
namespace {

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

// `rows` rows of kPanel floats, as they stand in a panel of this form, which is not of pairs.
void copy_to(Form form, const float* square, int64_t rows, void* panel) {
  if (form == Form::kFloats) {
    std::copy_n(square, rows * kPanel, static_cast<float*>(panel));
  } else {
    std::transform(square, square + rows * kPanel, static_cast<Bf16*>(panel), to_bf16);
  }
}
// The way back.
void copy_from(Form form, const void* panel, int64_t rows, float* square) {
  if (form == Form::kFloats) {
    std::copy_n(static_cast<const float*>(panel), rows * kPanel, square);
  } else if (form == Form::kBf16) {
    const auto* in = static_cast<const Bf16*>(panel);
    for (int64_t i = 0; i < rows * kPanel; ++i) square[i] = to_float(in[i]);
  } else {
    const auto* in = static_cast<const Pair*>(panel);
    for (int64_t r = 0; r < rows; r += 2, square += 2 * kPanel, in += kPanel)
      for (int64_t c = 0; c < kPanel; ++c) {
        square[c] = std::bit_cast<float>(in[c] << 16);
        square[kPanel + c] = std::bit_cast<float>(in[c] & 0xffff0000u);
      }
  }
}
int64_t element_size(Form form) { return form == Form::kFloats ? sizeof(float) : sizeof(Bf16); }

// Panel `panel` of pairs. Its rows of B are read one after the other, as they lie in memory, into
// the near caches and turned there; the lines go to memory whole and past the caches, because a
// model's weights are more than these hold.
void pack_panel_of_pairs([[maybe_unused]] ConstMatrix b, [[maybe_unused]] int64_t panel,
                         [[maybe_unused]] Pair* out) {
#ifdef TR_HAS_PAIRS
  // A line more than it takes: rows a power of two apart would share a set of the cache.
  constexpr int64_t kTerms = 2048, kStride = kTerms / 2 + kLanes;
  alignas(kMemoryAlignment) Pair rows[kLanes * kStride], turned[kLanes * kLanes];
  for (int64_t begin = 0; begin < b.cols; begin += kTerms) {
    const int64_t terms = std::min(kTerms, b.cols - begin), pairs = (terms + 1) / 2;
    for (int64_t half = 0; half < kPanel; half += kLanes) {
      for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t row = panel * kPanel + half + r;
        // A row that does not exist is zeros: no lane of the last one is read for it.
        const int64_t count = row < b.rows ? terms : 0;
        const float* in = b.row(std::min(row, b.rows - 1)) + begin;
        for (int64_t i = 0; i < terms; i += 2 * kLanes)
          _mm512_store_si512(
              rows + r * kStride + i / 2,
              round_neighbours_exactly(simd::load(in + i, count - i),
                                       simd::load(in + i + kLanes, count - i - kLanes)));
      }
      for (int64_t i = 0; i < pairs; i += kLanes) {
        simd::transpose16(reinterpret_cast<const float*>(rows + i), kStride,
                          reinterpret_cast<float*>(turned), kLanes);
        Pair* to = out + (begin / 2 + i) * kPanel + half;
        for (int64_t j = 0; j < std::min(kLanes, pairs - i); ++j)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + j * kPanel),
                              _mm512_load_si512(turned + j * kLanes));
      }
    }
  }
  // The caller's other threads see them once this one says that it is done.
  _mm_sfence();
#else
  TR_CHECK(false, "this instruction set has no pairs");
#endif
}

}  // namespace

void pack_panels_transposed(const Stream& stream, ConstMatrix b, Form form, void* panels) {
  const int64_t k = b.cols;
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  parallel_for(stream, num_panels(b.rows), copy_grain(k * kPanel), [&](int64_t begin, int64_t end) {
    alignas(kMemoryAlignment) float square[kLanes * kPanel];
    for (int64_t panel = begin; panel < end; ++panel) {
      auto* out = static_cast<std::byte*>(panels) + panel * panel_bytes;
      if (form == Form::kPairs) {
        TR_CHECK(reinterpret_cast<uintptr_t>(out) % kMemoryAlignment == 0, "panels at {}", panels);
        pack_panel_of_pairs(b, panel, reinterpret_cast<Pair*>(out));
        continue;
      }
      for (int64_t i = 0; i < k; i += kLanes) {
        transpose_square(b, panel * kPanel, i, square);
        copy_to(form, square, std::min(kLanes, k - i), out + i * kPanel * element_size(form));
      }
    }
  });
}

void unpack_panels(const Stream& stream, Form form, const void* panels, int64_t first, Matrix b) {
  const int64_t k = b.cols, last = first + b.rows;
  const int64_t first_panel = first / kPanel;
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  const int64_t count = num_panels(last) - first_panel;
  parallel_for(stream, count, copy_grain(k * kPanel), [&](int64_t begin, int64_t end) {
    // Some lines of each row at once: rows may be a power of two apart, and then the lines of all
    // of them are in one set of the cache.
    constexpr int64_t kBlock = 8 * kLanes;
    alignas(kMemoryAlignment) float block[kBlock * kPanel] = {}, turned[kPanel * kBlock];
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      const int64_t panel_row = panel * kPanel;
      const int64_t row_begin = std::max(first, panel_row),
                    row_end = std::min(last, panel_row + kPanel);
      const auto* in = static_cast<const std::byte*>(panels) + panel * panel_bytes;
      for (int64_t i = 0; i < k; i += kBlock) {
        const int64_t some = std::min(kBlock, k - i);
        copy_from(form, in + i * kPanel * element_size(form), some, block);
        for (int64_t j = 0; j < some; j += kLanes) {
          for (int64_t c = 0; c < kPanel; c += kLanes)
            simd::transpose16(block + j * kPanel + c, kPanel, turned + c * kBlock + j, kBlock);
        }
        for (int64_t row = row_begin; row < row_end; ++row)
          std::copy_n(turned + (row - panel_row) * kBlock, some, b.row(row - first) + i);
      }
    }
  });
}

namespace {

// The columns [first, first + 32) of B^T for all k, which is `cols` of B, as one panel of floats.
void transpose_to_floats(Form form, const std::byte* panels, int64_t panel_bytes, int64_t first,
                         int64_t count, int64_t cols, float* out) {
  alignas(kMemoryAlignment) float block[kPanel * kPanel], turned[kPanel * kPanel];
  for (int64_t col = 0; col < cols; col += kPanel, out += kPanel * kPanel) {
    const auto* in = panels + col / kPanel * panel_bytes + first * kPanel * element_size(form);
    copy_from(form, in, count, block);
    // Values of k that do not exist become zeros.
    std::fill(block + count * kPanel, block + kPanel * kPanel, 0.0f);
    for (int64_t r = 0; r < kPanel; r += kLanes) {
      for (int64_t c = 0; c < kPanel; c += kLanes)
        simd::transpose16(block + r * kPanel + c, kPanel, turned + c * kPanel + r, kPanel);
    }
    std::copy_n(turned, std::min(kPanel, cols - col) * kPanel, out);
  }
}

// The same, from pairs to pairs.
void transpose_to_pairs([[maybe_unused]] const std::byte* panels,
                        [[maybe_unused]] int64_t panel_bytes, [[maybe_unused]] int64_t first,
                        [[maybe_unused]] int64_t count, [[maybe_unused]] int64_t cols,
                        [[maybe_unused]] Pair* out) {
#ifdef TR_HAS_PAIRS
  constexpr int64_t kHalf = kPanel / 2;
  alignas(kMemoryAlignment) Pair block[kHalf * kPanel] = {}, turned[kHalf * kPanel];
  const int64_t pairs = (count + 1) / 2;
  for (int64_t col = 0; col < cols; col += kPanel, out += kHalf * kPanel) {
    const Pair* in =
        reinterpret_cast<const Pair*>(panels + col / kPanel * panel_bytes) + first / 2 * kPanel;
    const Pair* whole = in;
    if (pairs < kHalf) whole = block, std::copy_n(in, pairs * kPanel, block);
    const int64_t rows = (std::min(kPanel, cols - col) + 1) / 2;
    turn_pairs(whole, kPanel, rows == kHalf ? out : turned, kPanel);
    if (rows < kHalf) std::copy_n(turned, rows * kPanel, out);
  }
#endif
}

}  // namespace

void transpose_panels(const Stream& stream, Form form, const void* panels, int64_t cols, int64_t k,
                      void* transposed) {
  // A panel of the result holds 32 values of k for each column.
  const auto* all = static_cast<const std::byte*>(panels);
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  parallel_for(stream, num_panels(k), copy_grain(cols * kPanel), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel, count = std::min(kPanel, k - first);
      if (form == Form::kPairs) {
        transpose_to_pairs(all, panel_bytes, first, count, cols,
                           static_cast<Pair*>(transposed) + panel * ((cols + 1) / 2) * kPanel);
      } else {
        transpose_to_floats(form, all, panel_bytes, first, count, cols,
                            static_cast<float*>(transposed) + panel * cols * kPanel);
      }
    }
  });
}

}  // namespace tailrace::inline TR_ISA::gemm
