// Root-mean-square normalisation (Zhang & Sennrich 2019).
#pragma once

#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// y[t, i] = x[t, i] * weight[i] / sqrt(mean over i of x[t, i]^2 + eps)
//
//   x, y    [tokens, dim]; y may be x itself
//   weight  [dim]
//   inv_rms [tokens], written when not empty: 1 / sqrt(...), what backward needs
// Sums are float32, 16 interleaved lanes joined in a fixed tree. tokens == 0 is allowed.
void rms_norm(const Stream& stream, ConstMatrix x, std::span<const float> weight, float eps,
              Matrix y, std::span<float> inv_rms);

// dx (+)= gradient to x; dweight[i] += sum over t of dy[t, i] * x[t, i] * inv_rms[t], in order of
// t. `accumulate` adds to dx (the residual stream), otherwise dx is overwritten. dx may be dy.
void rms_norm_backward(const Stream& stream, ConstMatrix x, std::span<const float> weight,
                       std::span<const float> inv_rms, ConstMatrix dy, Matrix dx, bool accumulate,
                       std::span<float> dweight);

}  // namespace tailrace
