// Products: the exact one has one accumulator over k an element, and threads divide outputs.
//
// Free: several accumulators over k, joined at the end, in tiles that are as much lower as those
// take registers; or k, or for dW the tokens, divided among threads and joined.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/exactness.h"
#include "bench/report/program.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/linear.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

using gemm::kPanel;

// As in kernels/cpu/gemm.cc: what is divided, and how finely, is not the rule's.
constexpr int64_t kGrain = 256 * 1024;
constexpr int64_t kRowBlockFloats = 64 * 1024;
// As in kernels/cpu/linear.cc.
constexpr int64_t kTokenBlock = 256;

// kRows x 32 outputs, each in kChains sums: term k belongs to sum k modulo kChains.
template <int kChains, int kRows>
void chains_tile(ConstMatrix x, const float* panel, Matrix y) {
  Vec16 acc[kChains][kRows][2];
  for (auto& chain : acc) {
    for (auto& row : chain) row[0] = row[1] = simd::zero();
  }
  const float* a = x.data;
  const int64_t stride = x.stride, terms = x.cols;
  int64_t k = 0;
  for (; k + kChains <= terms; k += kChains, panel += kChains * kPanel) {
    for (int n = 0; n < kChains; ++n) {
      const Vec16 b[2] = {simd::load(panel + n * kPanel), simd::load(panel + n * kPanel + kLanes)};
      for (int r = 0; r < kRows; ++r) {
        const Vec16 value = simd::broadcast(a[r * stride + k + n]);
        for (int v = 0; v < 2; ++v) acc[n][r][v] = simd::fma(value, b[v], acc[n][r][v]);
      }
    }
  }
  for (; k < terms; ++k, panel += kPanel) {
    for (int r = 0; r < kRows; ++r) {
      const Vec16 value = simd::broadcast(a[r * stride + k]);
      for (int v = 0; v < 2; ++v) {
        acc[0][r][v] = simd::fma(value, simd::load(panel + v * kLanes), acc[0][r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      for (int width = kChains / 2; width >= 1; width /= 2) {
        for (int n = 0; n < width; ++n) {
          acc[n][r][v] = simd::add(acc[n][r][v], acc[n + width][r][v]);
        }
      }
      const int64_t left = y.cols - v * kLanes;
      if (left > 0) simd::store(y.row(r) + v * kLanes, acc[0][r][v], left);
    }
  }
}

// As many accumulators as the exact tile at most.
template <int kChains>
constexpr int kChainRows = std::max(1, static_cast<int>(gemm::kTileRows) / kChains);

using TileFunction = void (*)(ConstMatrix, const float*, Matrix);
template <int kChains, int... kRow>
constexpr auto tile_functions(std::integer_sequence<int, kRow...>) {
  return std::array<TileFunction, sizeof...(kRow)>{&chains_tile<kChains, kRow + 1>...};
}

template <int kChains>
void multiply_part(ConstMatrix x, const float* panels, Matrix y, int64_t panel_begin,
                   int64_t panel_end) {
  constexpr auto kTiles =
      tile_functions<kChains>(std::make_integer_sequence<int, kChainRows<kChains>>());
  const int64_t block_rows = std::max<int64_t>(kRowBlockFloats / x.cols, kChainRows<kChains>);
  for (int64_t block = 0; block < x.rows; block += block_rows) {
    const int64_t end = std::min(x.rows, block + block_rows);
    const int64_t tiles = (end - block + kChainRows<kChains> - 1) / kChainRows<kChains>;
    const int64_t height = (end - block + tiles - 1) / tiles;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const Matrix columns = y.slice_cols(panel * kPanel, std::min(y.cols, (panel + 1) * kPanel));
      for (int64_t row = block; row < end; row += height) {
        const int64_t rows = std::min(height, end - row);
        kTiles[static_cast<size_t>(rows - 1)](x.slice_rows(row, row + rows),
                                              panels + panel * kPanel * x.cols,
                                              columns.slice_rows(row, row + rows));
      }
    }
  }
}

// y = x B, B in panels.
template <int kChains>
void multiply_in_chains(const Stream& stream, ConstMatrix x, const float* panels, Matrix y) {
  const int64_t count = gemm::num_panels(y.cols);
  const int64_t grain = std::max<int64_t>(1, kGrain * count / (x.rows * y.cols * x.cols));
  parallel_for(stream, count, grain, [&](int64_t begin, int64_t end) {
    multiply_part<kChains>(x, panels, y, begin, end);
  });
}

void join(const Stream& stream, std::span<const float> partials, std::span<float> sum) {
  const auto size = static_cast<int64_t>(sum.size());
  const auto parts = static_cast<int64_t>(partials.size()) / size;
  parallel_for(stream, (size + kLanes - 1) / kLanes, 1024, [&](int64_t begin, int64_t end) {
    const int64_t stop = std::min(size, end * kLanes);
    for (int64_t i = begin * kLanes; i < stop; i += kLanes) {
      const int64_t left = stop - i;
      Vec16 total = simd::load(sum.data() + i, left);
      for (int64_t p = 0; p < parts; ++p) {
        total = simd::add(total, simd::load(partials.data() + p * size + i, left));
      }
      simd::store(sum.data() + i, total, left);
    }
  });
}

int64_t num_parts(const Stream& stream, int64_t work, int64_t most) {
  return std::clamp<int64_t>(std::min(work / kGrain, most), 1, num_threads(stream));
}

// y = x B, k divided among the threads. `partials`: an output a thread, less one. y is contiguous.
void multiply_by_threads(const Stream& stream, ConstMatrix x, const float* panels, Matrix y,
                         std::span<float> partials) {
  const int64_t size = y.rows * y.cols, k = x.cols;
  const int64_t parts = num_parts(stream, size * k, k);
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = k * part / parts, last = k * (part + 1) / parts;
      gemm::multiply(Stream{}, {.a = x.data + first,
                                .a_stride = x.stride,
                                .panels = panels + first * kPanel,
                                .panel_stride = k * kPanel,
                                .rows = y.rows,
                                .cols = y.cols,
                                .k = last - first,
                                .c = part == 0 ? y.data : partials.data() + (part - 1) * size,
                                .c_stride = y.cols});
    }
  });
  if (parts > 1) {
    join(stream, partials.first(static_cast<size_t>((parts - 1) * size)),
         {y.data, static_cast<size_t>(size)});
  }
}

// Adds dy^T x of some tokens, a block of tokens after the other, to `out`, or with `overwrite`
// begins with the first block.
void add_token_blocks(const Stream& stream, ConstMatrix dy, ConstMatrix x, float* tiles,
                      float* panels, bool overwrite, Matrix out) {
  for (int64_t begin = 0; begin < dy.rows; begin += kTokenBlock) {
    const int64_t end = std::min(dy.rows, begin + kTokenBlock);
    gemm::pack_tiles(stream, dy.slice_rows(begin, end), tiles);
    gemm::pack_panels(stream, x.slice_rows(begin, end), panels);
    gemm::multiply(stream, {.layout = gemm::Layout::kTiles,
                            .a = tiles,
                            .panels = panels,
                            .rows = out.rows,
                            .cols = out.cols,
                            .k = end - begin,
                            .add_to_c = !overwrite || begin > 0,
                            .c = out.data,
                            .c_stride = out.stride});
  }
}

// Scratch of the ways of dW that are free.
struct TokenScratch {
  std::vector<Buffer> tiles, panels;  // a thread each
  Buffer partials;                    // dW for each thread but one
  TokenScratch(int threads, int64_t tokens, int64_t out, int64_t in) {
    const int64_t block = std::min(kTokenBlock, tokens);
    const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
    for (int i = 0; i < threads; ++i) {
      tiles.emplace_back(bytes(gemm::tiles_size(out, block)));
      panels.emplace_back(bytes(gemm::panels_size(in, block)));
    }
    partials = Buffer(bytes((threads - 1) * out * in));
  }
};

// dW += dy^T x, the tokens divided among the threads.
void grad_weight_by_threads(const Stream& stream, TokenScratch& scratch, ConstMatrix dy,
                            ConstMatrix x, Matrix dweight) {
  const int64_t size = dweight.rows * dweight.cols, tokens = dy.rows;
  const int64_t parts = num_parts(stream, size * tokens, tokens);
  std::span<float> partials = scratch.partials.as<float>();
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = tokens * part / parts, last = tokens * (part + 1) / parts;
      const auto i = static_cast<size_t>(part);
      add_token_blocks(
          Stream{}, dy.slice_rows(first, last), x.slice_rows(first, last),
          scratch.tiles[i].as<float>().data(), scratch.panels[i].as<float>().data(),
          /*overwrite=*/part > 0,
          part == 0 ? dweight
                    : Matrix(partials.data() + (part - 1) * size, dweight.rows, dweight.cols));
    }
  });
  if (parts > 1) {
    join(stream, partials.first(static_cast<size_t>((parts - 1) * size)),
         {dweight.data, static_cast<size_t>(size)});
  }
}

// W as files store it, and packed as often as a case calls for.
struct Weights {
  RandomMatrix rows;
  std::vector<Buffer> memory;
  std::vector<Weight> packed;

  Weights(const Stream& stream, const ProductShape& shape, std::mt19937& rng)
      : rows(shape.out, shape.in, rng) {
    const size_t bytes = weight_bytes(Dtype::kF32, shape.out, shape.in);
    for (int64_t i = num_copies(shape.layers, static_cast<int64_t>(bytes)); i > 0; --i) {
      memory.emplace_back(bytes);
      packed.push_back(pack_weight(stream, rows.view, Dtype::kF32, memory.back().as<std::byte>()));
    }
  }
};

// Columns that the plain loops compute: of a vocabulary all would take seconds.
constexpr int64_t kFewColumns = 2048, kFewRows = 3;

// Both against the reference where it is computed, then the free one everywhere.
void require_both_close(Matrix exact, Matrix free, ConstMatrix expected, int64_t terms,
                        const std::string& what) {
  const auto few = [&](Matrix m) {
    return m.slice_rows(0, expected.rows).slice_cols(0, expected.cols);
  };
  require_close(few(exact), expected, terms, what);
  require_close(few(free), expected, terms, what + ", free");
  // The roundings of both.
  require_close(free, exact, 2 * terms, what + ", free against exact");
}

void forward_case(ExactnessHarness& bench, const ProductShape& shape, const Weights& weights,
                  int64_t rows, std::mt19937& rng) {
  const std::string name = product_name(shape, rows, "");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  RandomMatrix x(rows, shape.in, rng), y(rows, shape.out, rng), again(rows, shape.out, rng);
  Buffer partials(static_cast<size_t>((bench.num_threads() - 1) * rows * shape.out) *
                  sizeof(float));
  const auto packed = [&](int64_t copy) { return weights.packed[static_cast<size_t>(copy)]; };
  const auto panels = [&](int64_t copy) {
    return reinterpret_cast<const float*>(packed(copy).data);
  };
  const auto exact = [&](int64_t copy) {
    linear(stream, {.x = x.view, .weight = packed(copy), .y = y.view});
  };
  std::vector<Liberty> liberties;
  const auto chains = [&]<int kChains>() {
    liberties.push_back({fmt::format("k in {} chains", kChains), [&](int64_t copy) {
                           multiply_in_chains<kChains>(stream, x.view, panels(copy), y.view);
                         }});
  };
  chains.template operator()<2>();
  chains.template operator()<4>();
  if (rows == 1) chains.template operator()<8>();
  if (bench.num_threads() > 1) {
    liberties.push_back({"k among threads", [&](int64_t copy) {
                           multiply_by_threads(stream, x.view, panels(copy), y.view,
                                               partials.as<float>());
                         }});
  }

  exact(0);
  linear(Stream{}, {.x = x.view, .weight = packed(0), .y = again.view});
  require_same_bits(y.view, again.view, name + ", one thread");
  for (int64_t r = 0; r < rows; r += std::max<int64_t>(1, rows / kFewRows)) {
    linear(stream, {.x = x.view.slice_rows(r, r + 1),
                    .weight = packed(0),
                    .y = again.view.slice_rows(r, r + 1)});
  }
  require_same_bits(y.view, again.view, name + ", one row at a time");
  const int64_t few_rows = std::min(rows, kFewRows), few_columns = std::min(shape.out, kFewColumns);
  RandomMatrix expected(few_rows, few_columns, rng);
  ref::linear(x.view.slice_rows(0, few_rows), weights.rows.view.slice_rows(0, few_columns), {},
              expected.view);
  exact(0);
  std::memcpy(again.view.data, y.view.data, y.memory.size());
  for (const Liberty& liberty : liberties) {
    liberty.call(0);
    require_both_close(again.view, y.view, expected.view, shape.in, name + ", " + liberty.name);
  }
  bench.measure(name, static_cast<int64_t>(weights.packed.size()), exact, liberties);
}

void grad_input_case(ExactnessHarness& bench, const ProductShape& shape, const Weights& weights,
                     int64_t rows, std::mt19937& rng) {
  const std::string name = product_name(shape, rows, ", dx");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  const Weight& w = weights.packed.front();
  const auto turn = [&](float* panels) {
    gemm::transpose_panels(stream, gemm::Form::kFloats, w.data, w.out, w.in, panels);
  };
  RandomMatrix dy(rows, shape.out, rng), dx(rows, shape.in, rng), again(rows, shape.in, rng);
  Buffer scratch(linear_grad_workspace_bytes(rows, shape.out, shape.in));
  Workspace workspace(scratch);
  float* panels = scratch.as<float>().data();
  Buffer partials(static_cast<size_t>((bench.num_threads() - 1) * rows * shape.in) * sizeof(float));
  const auto exact = [&](int64_t) {
    linear_grad_input(stream, workspace,
                      {.dy = dy.view, .weight = w, .dx = dx.view, .accumulate = false});
  };
  std::vector<Liberty> liberties = {{"k in 2 chains", [&](int64_t) {
                                       turn(panels);
                                       multiply_in_chains<2>(stream, dy.view, panels, dx.view);
                                     }}};
  if (bench.num_threads() > 1) {
    liberties.push_back({"k among threads", [&](int64_t) {
                           turn(panels);
                           multiply_by_threads(stream, dy.view, panels, dx.view,
                                               partials.as<float>());
                         }});
  }

  exact(0);
  linear_grad_input(Stream{}, workspace,
                    {.dy = dy.view, .weight = w, .dx = again.view, .accumulate = false});
  require_same_bits(dx.view, again.view, name + ", one thread");
  linear_grad_input(stream, workspace,
                    {.dy = dy.view.slice_rows(0, 1),
                     .weight = w,
                     .dx = again.view.slice_rows(0, 1),
                     .accumulate = false});
  require_same_bits(dx.view, again.view, name + ", one row");
  RandomMatrix expected(1, shape.in, rng);
  ref::linear_grad_input(dy.view.slice_rows(0, 1), weights.rows.view, expected.view, false);
  for (const Liberty& liberty : liberties) {
    liberty.call(0);
    require_both_close(again.view, dx.view, expected.view, shape.out, name + ", " + liberty.name);
  }
  bench.measure(name, 1, exact, liberties);
}

void grad_weight_case(ExactnessHarness& bench, const ProductShape& shape, int64_t rows,
                      std::mt19937& rng) {
  const std::string name = product_name(shape, rows, ", dW");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  RandomMatrix dy(rows, shape.out, rng), x(rows, shape.in, rng);
  // Buffers begin at 0.
  Buffer sums(static_cast<size_t>(shape.out * shape.in) * sizeof(float)), other(sums.size());
  const Matrix dw(sums.as<float>().data(), shape.out, shape.in);
  const Matrix again(other.as<float>().data(), shape.out, shape.in);
  Buffer scratch(linear_grad_workspace_bytes(rows, shape.out, shape.in));
  Workspace workspace(scratch);
  TokenScratch free_scratch(bench.num_threads(), rows, shape.out, shape.in);
  const auto exact = [&](int64_t) {
    linear_grad_weight(stream, workspace, {.dy = dy.view, .x = x.view, .dweight = dw});
  };
  std::vector<Liberty> liberties = {
      {"blocks of tokens added to dW", [&](int64_t) {
         add_token_blocks(stream, dy.view, x.view, free_scratch.tiles[0].as<float>().data(),
                          free_scratch.panels[0].as<float>().data(), /*overwrite=*/false, dw);
       }}};
  if (bench.num_threads() > 1) {
    liberties.push_back({"tokens among threads", [&](int64_t) {
                           grad_weight_by_threads(stream, free_scratch, dy.view, x.view, dw);
                         }});
  }

  exact(0);
  linear_grad_weight(Stream{}, workspace, {.dy = dy.view, .x = x.view, .dweight = again});
  require_same_bits(dw, again, name + ", one thread");
  const int64_t few = std::min<int64_t>(shape.out, 9);
  RandomMatrix expected(few, shape.in, rng);
  std::ranges::fill(expected.memory.as<float>(), 0.0f);
  ref::linear_grad_weight(dy.view.slice_cols(0, few), x.view, expected.view);
  for (const Liberty& liberty : liberties) {
    std::memset(dw.data, 0, sums.size());
    liberty.call(0);
    require_both_close(again, dw, expected.view, rows, name + ", " + liberty.name);
  }
  bench.measure(name, 1, exact, liberties);
}

}  // namespace

std::string product_name(const ProductShape& shape, int64_t rows, const std::string& what) {
  return fmt::format("{} [{}, {}] -> {}{}", shape.op, rows, shape.in, shape.out, what);
}

void exactness_products(ExactnessHarness& bench, const ProductShape& shape,
                        std::span<const int64_t> rows, std::span<const int64_t> gradient_rows) {
  const auto wanted = [&](std::span<const int64_t> all, const std::string& what) {
    return std::ranges::any_of(
        all, [&](int64_t n) { return bench.wants(product_name(shape, n, what)); });
  };
  // Making the weights of a vocabulary takes seconds.
  if (!wanted(rows, "") && !wanted(gradient_rows, ", dx") && !wanted(gradient_rows, ", dW")) return;
  std::mt19937 rng(1);
  const Weights weights(bench.stream(), shape, rng);
  for (int64_t n : rows) forward_case(bench, shape, weights, n, rng);
  for (int64_t n : gradient_rows) {
    grad_input_case(bench, shape, weights, n, rng);
    grad_weight_case(bench, shape, n, rng);
  }
}

}  // namespace tailrace
