// Root-mean-square normalisation (Zhang & Sennrich 2019).
#pragma once

#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// Each part of a row by itself, be it the row or, in the norms of queries and keys, one of its
// heads: y[t, h, i] = x[t, h, i] * weight[i] / sqrt(mean over i of x[t, h, i]^2 + eps)
//
//   x, y    [tokens, heads * dim]; y may be x itself
//   weight  [dim]
//   inv_rms [tokens * heads], written when not empty: 1 / sqrt(...), what backward needs
// With `residual` (where it has rows) the sum x + residual is what is normalised, and goes to
// `sum`; both [tokens, heads * dim] float32, and sum may be x or residual. Sums are float32, in an
// order that dim decides: on the CPU 16 interleaved lanes joined in a fixed tree. tokens == 0 is
// allowed.
struct RmsNorm {
  ConstTensor x;
  std::span<const float> weight;
  float eps = 0;
  Tensor y;
  std::span<float> inv_rms = {};
  ConstTensor residual = {};
  Tensor sum = {};
};
void rms_norm(const Stream& stream, const RmsNorm& args);

// dx (+)= gradient to x; dweight[i] += sum of dy[t, h, i] * x[t, h, i] * inv_rms[t, h], in order of
// (t, h) on the CPU. x is float32 or an operand, all else float32. `accumulate` adds to dx (the
// residual stream), otherwise dx is overwritten. dx may be dy, and dweight empty: nobody asks for
// it.
struct RmsNormBackward {
  ConstTensor x;
  std::span<const float> weight, inv_rms;
  ConstTensor dy;
  Tensor dx;
  bool accumulate = false;
  std::span<float> dweight;
};
void rms_norm_backward(const Stream& stream, const RmsNormBackward& args);

}  // namespace tailrace
