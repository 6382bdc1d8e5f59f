#include "kernels/ops/linear.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/linear_parts.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

// Tokens of one round of linear_grad_weight: a packed panel of x stays in the second-level cache
// beside some tiles of dy. In pairs the sums that wait between rounds would take as long as half of
// a product with so few.
constexpr int64_t kTokenBlock = 256, kPairTokenBlock = 2048;

static_assert(kWeightRows % gemm::kPanel == 0, "whole panels");

// Rows of W that linear_grad_input turns at once: 4 MiB of them, in whole panels.
int64_t out_block(int64_t out, int64_t in) {
  constexpr int64_t kFloats = 1 << 20;
  return std::min(out, std::max<int64_t>(kFloats / (std::max<int64_t>(in, 1) * gemm::kPanel), 1) *
                           gemm::kPanel);
}

}  // namespace

size_t weight_bytes(Dtype dtype, int64_t out, int64_t in) {
  return static_cast<size_t>(gemm::panels_size(gemm::form_of(dtype), out, in) * size_of(dtype));
}

Weight pack_weight(const Stream& stream, ConstMatrix master, Dtype dtype,
                   std::span<std::byte> memory) {
  TR_CHECK(memory.size() >= cpu::weight_bytes(dtype, master.rows, master.cols));
  gemm::pack_panels_transposed(stream, master, gemm::form_of(dtype), memory.data());
  return {.dtype = dtype, .data = memory.data(), .out = master.rows, .in = master.cols};
}

void unpack_rows(const Stream& stream, const Weight& weight, int64_t first, Matrix rows) {
  gemm::unpack_panels(stream, gemm::form_of(weight.dtype), weight.data, first, rows);
}

void linear(const Stream& stream, const Linear& args) {
  const ConstMatrix x = args.x.host();
  const Matrix y = args.y.host();
  const Weight& weight = args.weight;
  const std::span<const float> bias = args.bias;
  TR_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows,
           "x [{}, {}], W [{}, {}], y [{}, {}]", x.rows, x.cols, weight.out, weight.in, y.rows,
           y.cols);
  TR_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == weight.out);
  gemm::multiply(stream, {.a = x.data,
                          .a_stride = x.stride,
                          .panels = weight.data,
                          .form = gemm::form_of(weight.dtype),
                          .from_memory = weight.from_memory,
                          .rows = x.rows,
                          .cols = weight.out,
                          .k = weight.in,
                          .bias = bias.empty() ? nullptr : bias.data(),
                          .add_to_c = args.accumulate,
                          .c = y.data,
                          .c_stride = y.stride});
}

namespace {

void check_grad_input(ConstMatrix dy, const Weight& weight, Matrix dx) {
  TR_CHECK(dy.cols == weight.out && dx.cols == weight.in && dx.rows == dy.rows,
           "dy [{}, {}], W [{}, {}], dx [{}, {}]", dy.rows, dy.cols, weight.out, weight.in, dx.rows,
           dx.cols);
}

// to = start + dy W, each element one sum; `start` may be `to`, and without data it is 0.
struct InputProduct {
  ConstMatrix dy;
  const Weight& weight;
  Matrix start, to;
  bool accumulate = false;  // to += that
};
void multiply_turned(const Stream& stream, Workspace& workspace, const InputProduct& p) {
  Workspace::Scope scope(workspace);
  const gemm::Form form = gemm::form_of(p.weight.dtype);
  // The forward's panels are of W transposed and do not serve here.
  auto panels = workspace.take<float>(gemm::panels_size(p.weight.in, p.weight.out));
  gemm::transpose_panels(stream, form, p.weight.data, p.weight.out, p.weight.in, panels.data());
  gemm::multiply(stream, {.a = p.dy.data,
                          .a_stride = p.dy.stride,
                          .panels = panels.data(),
                          .form = form == gemm::Form::kPairs ? form : gemm::Form::kFloats,
                          .rows = p.dy.rows,
                          .cols = p.weight.in,
                          .k = p.weight.out,
                          .start = p.start.data,
                          .start_stride = p.start.stride,
                          .add_to_c = p.accumulate,
                          .c = p.to.data,
                          .c_stride = p.to.stride});
}

// dx = dy W, or with `accumulate` dx += it. Sums that are not finished wait in `unfinished`, which
// may be dx; going on, they begin with what it holds.
void multiply_parts(const Stream& stream, Workspace& workspace, ConstMatrix dy,
                    const Weight& weight, Matrix unfinished, bool goes_on, bool accumulate,
                    Matrix dx) {
  // Some rows of W are turned at a time: all of a head's would be the largest thing in memory.
  const int64_t block = out_block(weight.out, weight.in);
  for (int64_t begin = 0; begin < weight.out; begin += block) {
    const int64_t end = std::min(weight.out, begin + block);
    const bool last = end == weight.out;
    multiply_turned(stream, workspace,
                    {.dy = dy.slice_cols(begin, end),
                     .weight = rows_of(weight, begin, end),
                     .start = goes_on || begin > 0 ? unfinished : Matrix(),
                     .to = last ? dx : unfinished,
                     .accumulate = last && accumulate});
  }
}

}  // namespace

Weight rows_of(const Weight& weight, int64_t begin, int64_t end) {
  TR_CHECK(begin % kWeightRows == 0 && begin <= end && end <= weight.out, "rows {} to {} of {}",
           begin, end, weight.out);
  Weight rows = weight;
  rows.data += cpu::weight_bytes(weight.dtype, begin, weight.in);
  rows.out = end - begin;
  return rows;
}

void grad_input_of_rows(const Stream& stream, Workspace& workspace, ConstMatrix dy,
                        const Weight& weight, bool goes_on, Matrix dx) {
  check_grad_input(dy, weight, dx);
  if (dy.rows == 0) return;
  multiply_parts(stream, workspace, dy, weight, dx, goes_on, /*accumulate=*/false, dx);
}

void linear_grad_input(const Stream& stream, Workspace& workspace, const LinearGradInput& args) {
  const ConstMatrix dy = args.dy.host();
  const Matrix dx = args.dx.host();
  const Weight& weight = args.weight;
  check_grad_input(dy, weight, dx);
  if (dy.rows == 0) return;
  Workspace::Scope scope(workspace);
  Matrix unfinished = dx;
  // Where dx holds something they cannot wait there.
  if (args.accumulate && out_block(weight.out, weight.in) < weight.out)
    unfinished = {workspace.take<float>(dx.rows * dx.cols).data(), dx.rows, dx.cols};
  multiply_parts(stream, workspace, dy, weight, unfinished, /*goes_on=*/false, args.accumulate, dx);
}

void linear_grad_weight(const Stream& stream, Workspace& workspace, const LinearGradWeight& args) {
  const ConstMatrix dy = args.dy.host(), x = args.x.host();
  const Matrix dweight = args.dweight.host();
  TR_CHECK(dy.rows == x.rows && dweight.rows == dy.cols && dweight.cols == x.cols,
           "dy [{}, {}], x [{}, {}], dW [{}, {}]", dy.rows, dy.cols, x.rows, x.cols, dweight.rows,
           dweight.cols);
  if (dy.rows == 0) return;
  Workspace::Scope scope(workspace);
  const bool pairs = gemm::form_of(args.weight) == gemm::Form::kPairs;
  const gemm::Form form = pairs ? gemm::Form::kPairs : gemm::Form::kFloats;
  const int64_t block = std::min(pairs ? kPairTokenBlock : kTokenBlock, dy.rows);
  auto panels =
      workspace.take<float>(gemm::num_floats(form, gemm::panels_size(form, x.cols, block)));
  // Sums over more than one block wait here, unfinished: dW may already hold something.
  std::span<float> unfinished;
  if (dy.rows > block) unfinished = workspace.take<float>(dweight.rows * dweight.cols);

  for (int64_t begin = 0; begin < dy.rows; begin += block) {
    const int64_t end = std::min(dy.rows, begin + block);
    // The sum over all tokens is finished before it meets what dW holds: dW is rounded once a call,
    // as if k had not been cut.
    const bool last = end == dy.rows;
    const ConstMatrix tokens = x.slice_rows(begin, end);
    if (pairs) {
      gemm::pack_panels(stream, tokens, reinterpret_cast<gemm::Pair*>(panels.data()));
    } else {
      gemm::pack_panels(stream, tokens, panels.data());
    }
    gemm::multiply(stream, {.layout = gemm::Layout::kColumns,
                            .a = dy.row(begin),
                            .a_stride = dy.stride,
                            .panels = panels.data(),
                            .form = form,
                            .rows = dweight.rows,
                            .cols = dweight.cols,
                            .k = end - begin,
                            .start = begin == 0 ? nullptr : unfinished.data(),
                            .start_stride = dweight.cols,
                            .add_to_c = last,
                            .c = last ? dweight.data : unfinished.data(),
                            .c_stride = last ? dweight.stride : dweight.cols});
  }
}

void linear_grad_bias(const Stream& stream, const LinearGradBias& args) {
  const ConstMatrix dy = args.dy.host();
  const std::span<float> dbias = args.dbias;
  TR_CHECK(dy.cols == static_cast<int64_t>(dbias.size()), "dy [{}, {}], dbias [{}]", dy.rows,
           dy.cols, dbias.size());
  const int64_t vectors = (dy.cols + kLanes - 1) / kLanes;
  // Divided by columns, never by tokens: a column's sum belongs to one thread.
  const int64_t grain = std::max<int64_t>(1, 16384 / kLanes / std::max<int64_t>(dy.rows, 1));
  parallel_for(stream, vectors, grain, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      const int64_t col = v * kLanes, left = dy.cols - col;
      Vec16 sum = simd::zero();
      for (int64_t t = 0; t < dy.rows; ++t) sum = simd::add(sum, simd::load(dy.row(t) + col, left));
      float* out = dbias.data() + col;
      simd::store(out, simd::add(simd::load(out, left), sum), left);
    }
  });
}

size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in) {
  const int64_t block = std::min(std::max(kTokenBlock, kPairTokenBlock / 2), tokens);
  auto bytes = [](int64_t floats) {
    return Workspace::aligned(static_cast<size_t>(floats) * sizeof(float));
  };
  // The larger of the two, which never run at the same time. What is unfinished is counted for an
  // overwritten dx too, where it is not taken.
  const int64_t rows = out_block(out, in);
  const size_t input = bytes(gemm::panels_size(in, rows)) + bytes(rows < out ? tokens * in : 0);
  const size_t weight =
      bytes(gemm::panels_size(in, block)) + bytes(tokens > kTokenBlock ? out * in : 0);
  return std::max(input, weight);
}

}  // namespace tailrace::cpu::inline TR_ISA
