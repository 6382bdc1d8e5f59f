#include "kernels/ops/experts.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

int64_t grain_tokens(int64_t floats) {
  return std::max<int64_t>(1, 16 * 1024 / std::max<int64_t>(floats, 1));
}

void check_groups(std::span<const int32_t> offsets, int64_t experts, int64_t rows) {
  TR_CHECK(std::ssize(offsets) == experts + 1 && offsets.front() == 0 && offsets.back() == rows,
           "{} groups of {} experts, {} rows", offsets.size() - 1, experts, rows);
}

// visit(expert, first row, last row) of those that have any.
template <class Visit>
void for_each_group(std::span<const int32_t> offsets, const Visit& visit) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] < offsets[e + 1])
      visit(static_cast<int64_t>(e), int64_t{offsets[e]}, int64_t{offsets[e + 1]});
}

}  // namespace

void grouped_linear(const Stream& stream, const GroupedLinear& a) {
  const ConstMatrix x = a.x.host();
  const Matrix y = a.y.host();
  const Weight& weight = a.weights.first;
  TR_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows,
           "x [{}, {}], W [{}, {}], y [{}, {}]", x.rows, x.cols, weight.out, weight.in, y.rows,
           y.cols);
  check_groups(a.offsets, a.weights.count, x.rows);
  gemm::multiply_groups(stream,
                        {.a = x.data,
                         .a_stride = x.stride,
                         .panels = weight.data,
                         .form = gemm::form_of(weight.dtype),
                         .from_memory = weight.from_memory,
                         .rows = x.rows,
                         .cols = weight.out,
                         .k = weight.in,
                         .c = y.data,
                         .c_stride = y.stride},
                        a.offsets, a.weights.bytes);
}

// Experts come one after the other, here and below: each product divides itself among all threads,
// and the workspace holds what one of them needs.
void grouped_grad_input(const Stream& stream, Workspace& workspace, const GroupedGradInput& a) {
  check_groups(a.offsets, a.weights.count, a.dy.rows);
  for_each_group(a.offsets, [&](int64_t e, int64_t begin, int64_t end) {
    cpu::linear_grad_input(stream, workspace,
                           {.dy = a.dy.slice_rows(begin, end),
                            .weight = a.weights.at(e),
                            .dx = a.dx.slice_rows(begin, end),
                            .accumulate = false});
  });
}

void grouped_grad_weight(const Stream& stream, Workspace& workspace, const GroupedGradWeight& a) {
  check_groups(a.offsets, a.dweights.count, a.dy.rows);
  for_each_group(a.offsets, [&](int64_t e, int64_t begin, int64_t end) {
    cpu::linear_grad_weight(stream, workspace,
                            {.dy = a.dy.slice_rows(begin, end),
                             .x = a.x.slice_rows(begin, end),
                             .dweight = a.dweights.at(e),
                             .weight = a.weight});
  });
}

void weighted_sum(const Stream& stream, const WeightedSum& a) {
  const ConstMatrix x = a.x.host();
  const ConstMatrix weights = a.weights.host();
  const Matrix y = a.y.host();
  const int64_t tokens = y.rows, dim = y.cols;
  const int64_t k = tokens == 0 ? 0 : x.rows / tokens;
  TR_CHECK(x.rows == tokens * k && x.cols == dim && std::ssize(a.rows) == x.rows &&
               (weights.rows == 0 || (weights.rows == tokens && weights.cols == k)),
           "x [{}, {}], {} rows, weights [{}, {}], y [{}, {}]", x.rows, x.cols, a.rows.size(),
           weights.rows, weights.cols, tokens, dim);
  parallel_for(stream, tokens, grain_tokens(k * dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < dim; i += kLanes) {
        const int64_t left = dim - i;
        Vec16 sum = simd::zero();
        for (int64_t j = 0; j < k; ++j) {
          const Vec16 part = simd::load(x.row(a.rows[static_cast<size_t>(t * k + j)]) + i, left);
          sum = weights.rows > 0 ? simd::fma(simd::broadcast(weights.row(t)[j]), part, sum)
                                 : simd::add(part, sum);
        }
        simd::store(y.row(t) + i, sum, left);
      }
    }
  });
}

void weight_backward(const Stream& stream, const WeightBackward& a) {
  const Matrix hs = a.h.host();
  const Matrix dhs = a.dh.host();
  const ConstMatrix weights = a.weights.host();
  const Matrix dweights = a.dweights.host();
  const int64_t tokens = weights.rows, k = weights.cols, dim = hs.cols;
  TR_CHECK(hs.rows == tokens * k && dhs.rows == hs.rows && dhs.cols == dim &&
               std::ssize(a.rows) == hs.rows && dweights.rows == tokens && dweights.cols == k,
           "h [{}, {}], dh [{}, {}], {} rows, {} tokens", hs.rows, dim, dhs.rows, dhs.cols,
           a.rows.size(), tokens);
  parallel_for(stream, tokens, grain_tokens(k * dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t j = 0; j < k; ++j) {
        const int64_t row = a.rows[static_cast<size_t>(t * k + j)];
        float *h = hs.row(row), *dh = dhs.row(row);
        const Vec16 weight = simd::broadcast(weights.row(t)[j]);
        Vec16 sum = simd::zero();
        for (int64_t i = 0; i < dim; i += kLanes) {
          const int64_t left = dim - i;
          // Both are read before they are scaled: the gradient to a weight is of the values for a
          // weight of 1.
          const Vec16 x = simd::load(h + i, left), dx = simd::load(dh + i, left);
          sum = simd::fma(dx, x, sum);
          simd::store(h + i, simd::mul(x, weight), left);
          simd::store(dh + i, simd::mul(dx, weight), left);
        }
        dweights.row(t)[j] = simd::reduce_add(sum);
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
