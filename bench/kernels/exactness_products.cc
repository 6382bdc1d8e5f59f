// Products: the exact one has one accumulator over k an element, and threads divide outputs.
//
// Free: several accumulators over k (exactness_chains.h); or k, or for dW the tokens, divided among
// threads and joined.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/exactness.h"
#include "bench/kernels/exactness_chains.h"
#include "bench/report/program.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_copies.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/linear.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

using gemm::Form;
using gemm::kPanel;
using gemm::Pair;

// As in kernels/cpu/linear.cc: tokens of a block of dW, and rows of W that dx turns at once.
int64_t token_block(Form form) { return form == Form::kPairs ? 2048 : 256; }
int64_t out_block(int64_t out, int64_t in) {
  constexpr int64_t kFloats = 1 << 20;
  return std::min(out, std::max<int64_t>(kFloats / (in * kPanel), 1) * kPanel);
}

size_t float_bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

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
  return std::clamp<int64_t>(std::min(work / gemm::kGrain, most), 1, num_threads(stream));
}

// As ChainsProduct, k divided among the threads, between pairs. `partials`: an output a thread,
// less one. c is contiguous.
void multiply_by_threads(const Stream& stream, const ChainsProduct& p, std::span<float> partials) {
  const int64_t size = p.c.rows * p.c.cols, k = p.a.cols;
  const bool pairs = p.form == Form::kPairs;
  const int64_t step = pairs ? 2 : 1, steps = (k + step - 1) / step;
  const int64_t parts = num_parts(stream, size * k, steps);
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = steps * part / parts * step;
      const int64_t last = std::min(k, steps * (part + 1) / parts * step);
      const auto* panels = static_cast<const std::byte*>(p.panels);
      gemm::multiply(Stream{},
                     {.a = p.a.data + first,
                      .a_stride = p.a.stride,
                      .panels = panels + first * kPanel * (pairs ? sizeof(Bf16) : sizeof(float)),
                      .form = p.form,
                      .panel_stride = gemm::panels_size(p.form, kPanel, k),
                      .rows = p.c.rows,
                      .cols = p.c.cols,
                      .k = last - first,
                      .add_to_c = p.add_to_c && part == 0,
                      .c = part == 0 ? p.c.data : partials.data() + (part - 1) * size,
                      .c_stride = p.c.cols});
    }
  });
  if (parts > 1) {
    join(stream, partials.first(static_cast<size_t>((parts - 1) * size)),
         {p.c.data, static_cast<size_t>(size)});
  }
}

// dx = dy W, of as many rows of W at a time as the exact way turns; their products are added to dx.
// `panels`: a block's. `multiply` is one of the free products.
template <class Multiply>
void grad_input_in_blocks(const Stream& stream, ConstMatrix dy, const Weight& w,
                          std::span<std::byte> panels, Matrix dx, const Multiply& multiply) {
  const Form form = gemm::form_of(w.dtype);
  const int64_t block = out_block(w.out, w.in);
  for (int64_t begin = 0; begin < w.out; begin += block) {
    const int64_t end = std::min(w.out, begin + block);
    gemm::transpose_panels(stream, form, w.data + weight_bytes(w.dtype, begin, w.in), end - begin,
                           w.in, panels.data());
    multiply(ChainsProduct{.a = dy.slice_cols(begin, end),
                           .form = form,
                           .panels = panels.data(),
                           .add_to_c = begin > 0,
                           .c = dx});
  }
}

// Adds dy^T x of some tokens, a block of tokens after the other, to `out`, or with `overwrite`
// begins with the first block. `panels`: for a block of x.
void add_token_blocks(const Stream& stream, Form form, ConstMatrix dy, ConstMatrix x,
                      std::span<std::byte> panels, bool overwrite, Matrix out) {
  const int64_t block = token_block(form);
  for (int64_t begin = 0; begin < dy.rows; begin += block) {
    const int64_t end = std::min(dy.rows, begin + block);
    const ConstMatrix tokens = x.slice_rows(begin, end);
    if (form == Form::kPairs)
      gemm::pack_panels(stream, tokens, reinterpret_cast<Pair*>(panels.data()));
    else
      gemm::pack_panels(stream, tokens, reinterpret_cast<float*>(panels.data()));
    gemm::multiply(stream, {.layout = gemm::Layout::kColumns,
                            .a = dy.row(begin),
                            .a_stride = dy.stride,
                            .panels = panels.data(),
                            .form = form,
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
  std::vector<Buffer> panels;  // of a block of x, a thread each
  Buffer partials;             // dW for each thread but one
  TokenScratch(Form form, int threads, int64_t tokens, int64_t out, int64_t in)
      : partials(float_bytes((threads - 1) * out * in)) {
    const int64_t floats =
        gemm::num_floats(form, gemm::panels_size(form, in, std::min(token_block(form), tokens)));
    for (int i = 0; i < threads; ++i) panels.emplace_back(float_bytes(floats));
  }
};

// dW += dy^T x, the tokens divided among the threads.
void grad_weight_by_threads(const Stream& stream, Form form, TokenScratch& scratch, ConstMatrix dy,
                            ConstMatrix x, Matrix dweight) {
  const int64_t size = dweight.rows * dweight.cols, tokens = dy.rows;
  const int64_t parts = num_parts(stream, size * tokens, tokens);
  std::span<float> partials = scratch.partials.as<float>();
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = tokens * part / parts, last = tokens * (part + 1) / parts;
      add_token_blocks(
          Stream{}, form, dy.slice_rows(first, last), x.slice_rows(first, last),
          scratch.panels[static_cast<size_t>(part)].as<std::byte>(), /*overwrite=*/part > 0,
          part == 0 ? dweight
                    : Matrix(partials.data() + (part - 1) * size, dweight.rows, dweight.cols));
    }
  });
  if (parts > 1) {
    join(stream, partials.first(static_cast<size_t>((parts - 1) * size)),
         {dweight.data, static_cast<size_t>(size)});
  }
}

// The values that products read of an operand, for the reference.
class Operand {
 public:
  Operand(Form form, ConstMatrix from) : view_(from) {
    if (form != Form::kPairs) return;
    rounded_.reserve(static_cast<size_t>(from.rows * from.cols));
    for (int64_t r = 0; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols; ++c) rounded_.push_back(to_float(to_bf16(from.row(r)[c])));
    }
    view_ = {rounded_.data(), from.rows, from.cols};
  }
  Operand(const Operand&) = delete;
  const ConstMatrix& view() const { return view_; }

 private:
  std::vector<float> rounded_;
  ConstMatrix view_;
};

// W as products read it, and packed as often as a case calls for.
struct Weights {
  Dtype dtype;
  Form form;
  RandomMatrix rows;
  std::vector<Buffer> memory;
  std::vector<Weight> packed;

  Weights(const Stream& stream, const ProductShape& shape, Dtype type, std::mt19937& rng)
      : dtype(type), form(gemm::form_of(type)), rows(shape.out, shape.in, rng) {
    const size_t bytes = weight_bytes(dtype, shape.out, shape.in);
    for (int64_t i = num_copies(shape.layers, static_cast<int64_t>(bytes)); i > 0; --i) {
      memory.emplace_back(bytes);
      packed.push_back(pack_weight(stream, rows.view, dtype, memory.back().as<std::byte>()));
    }
    if (form != Form::kPairs) return;
    for (float& w : rows.memory.as<float>()) w = to_float(to_bf16(w));
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
  Buffer partials(float_bytes((bench.num_threads() - 1) * rows * shape.out));
  const auto packed = [&](int64_t copy) { return weights.packed[static_cast<size_t>(copy)]; };
  const auto product = [&](int64_t copy) {
    return ChainsProduct{
        .a = x.view, .form = weights.form, .panels = packed(copy).data, .c = y.view};
  };
  const auto exact = [&](int64_t copy) {
    linear(stream, {.x = x.view, .weight = packed(copy), .y = y.view});
  };
  std::vector<Liberty> liberties;
  for (const int chains : {2, 4, 8}) {
    if (chains == 8 && rows > 1) continue;
    liberties.push_back({fmt::format("k in {} chains", chains), [&, chains](int64_t copy) {
                           multiply_in_chains(stream, chains, product(copy));
                         }});
  }
  if (bench.num_threads() > 1) {
    liberties.push_back({"k among threads", [&](int64_t copy) {
                           multiply_by_threads(stream, product(copy), partials.as<float>());
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
  const Operand operand(weights.form, x.view.slice_rows(0, few_rows));
  ref::linear(operand.view(), weights.rows.view.slice_rows(0, few_columns), {}, expected.view);
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
  RandomMatrix dy(rows, shape.out, rng), dx(rows, shape.in, rng), again(rows, shape.in, rng);
  Buffer scratch(linear_grad_workspace_bytes(rows, shape.out, shape.in));
  Workspace workspace(scratch);
  Buffer panels(float_bytes(gemm::panels_size(shape.in, out_block(shape.out, shape.in))));
  Buffer partials(float_bytes((bench.num_threads() - 1) * rows * shape.in));
  const auto exact = [&](int64_t) {
    linear_grad_input(stream, workspace,
                      {.dy = dy.view, .weight = w, .dx = dx.view, .accumulate = false});
  };
  const auto free = [&](const auto& multiply) {
    grad_input_in_blocks(stream, dy.view, w, panels.as<std::byte>(), dx.view, multiply);
  };
  std::vector<Liberty> liberties = {
      {"k in 2 chains",
       [&](int64_t) { free([&](const ChainsProduct& p) { multiply_in_chains(stream, 2, p); }); }}};
  if (bench.num_threads() > 1) {
    liberties.push_back({"k among threads", [&](int64_t) {
                           free([&](const ChainsProduct& p) {
                             multiply_by_threads(stream, p, partials.as<float>());
                           });
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
  const Operand operand(weights.form, dy.view.slice_rows(0, 1));
  ref::linear_grad_input(operand.view(), weights.rows.view, expected.view, false);
  for (const Liberty& liberty : liberties) {
    liberty.call(0);
    require_both_close(again.view, dx.view, expected.view, shape.out, name + ", " + liberty.name);
  }
  bench.measure(name, 1, exact, liberties);
}

void grad_weight_case(ExactnessHarness& bench, const ProductShape& shape, Dtype dtype, int64_t rows,
                      std::mt19937& rng) {
  const std::string name = product_name(shape, rows, ", dW");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  const Form form = gemm::form_of(dtype);
  RandomMatrix dy(rows, shape.out, rng), x(rows, shape.in, rng);
  // Buffers begin at 0.
  Buffer sums(float_bytes(shape.out * shape.in)), other(sums.size());
  const Matrix dw(sums.as<float>().data(), shape.out, shape.in);
  const Matrix again(other.as<float>().data(), shape.out, shape.in);
  Buffer scratch(linear_grad_workspace_bytes(rows, shape.out, shape.in));
  Workspace workspace(scratch);
  TokenScratch free_scratch(form, bench.num_threads(), rows, shape.out, shape.in);
  const auto exact = [&](int64_t) {
    linear_grad_weight(stream, workspace,
                       {.dy = dy.view, .x = x.view, .dweight = dw, .weight = dtype});
  };
  std::vector<Liberty> liberties = {{"blocks of tokens added to dW", [&](int64_t) {
                                       add_token_blocks(stream, form, dy.view, x.view,
                                                        free_scratch.panels[0].as<std::byte>(),
                                                        /*overwrite=*/false, dw);
                                     }}};
  if (bench.num_threads() > 1) {
    liberties.push_back({"tokens among threads", [&](int64_t) {
                           grad_weight_by_threads(stream, form, free_scratch, dy.view, x.view, dw);
                         }});
  }

  exact(0);
  linear_grad_weight(Stream{}, workspace,
                     {.dy = dy.view, .x = x.view, .dweight = again, .weight = dtype});
  require_same_bits(dw, again, name + ", one thread");
  const int64_t few = std::min<int64_t>(shape.out, 9);
  RandomMatrix expected(few, shape.in, rng);
  std::ranges::fill(expected.memory.as<float>(), 0.0f);
  const Operand few_dy(form, dy.view.slice_cols(0, few)), all_x(form, x.view);
  ref::linear_grad_weight(few_dy.view(), all_x.view(), expected.view);
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

void exactness_products(ExactnessHarness& bench, const ProductShape& shape, Dtype dtype,
                        std::span<const int64_t> rows, std::span<const int64_t> gradient_rows) {
  const auto wanted = [&](std::span<const int64_t> all, const std::string& what) {
    return std::ranges::any_of(
        all, [&](int64_t n) { return bench.wants(product_name(shape, n, what)); });
  };
  // Making the weights of a vocabulary takes seconds.
  if (!wanted(rows, "") && !wanted(gradient_rows, ", dx") && !wanted(gradient_rows, ", dW")) return;
  std::mt19937 rng(1);
  const Weights weights(bench.stream(), shape, dtype, rng);
  for (int64_t n : rows) forward_case(bench, shape, weights, n, rng);
  for (int64_t n : gradient_rows) {
    grad_input_case(bench, shape, weights, n, rng);
    grad_weight_case(bench, shape, dtype, n, rng);
  }
}

}  // namespace tailrace
