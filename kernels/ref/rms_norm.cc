#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void rms_norm(ConstMatrix x, std::span<const float> weight, float eps, Matrix y,
              std::span<float> inv_rms) {
  const auto dim = static_cast<int64_t>(weight.size());
  for (int64_t part = 0; part < x.rows * x.cols / dim; ++part) {
    // A row may hold several parts of `dim` (the heads of q and k), each of which is normalised by
    // itself.
    const float* in = x.row(part * dim / x.cols) + part * dim % x.cols;
    float* out = y.row(part * dim / x.cols) + part * dim % x.cols;
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += double{in[i]} * in[i];
    double inv = 1 / std::sqrt(squares / static_cast<double>(dim) + eps);
    if (!inv_rms.empty()) inv_rms[static_cast<size_t>(part)] = static_cast<float>(inv);
    for (int64_t i = 0; i < dim; ++i)
      out[i] = static_cast<float>(in[i] * inv * weight[static_cast<size_t>(i)]);
  }
}

// y_i = x_i w_i r with r = (mean x^2 + eps)^(-1/2), so dr/dx_j = -r^3 x_j / dim.
void rms_norm_backward(ConstMatrix x, std::span<const float> weight, std::span<const float> inv_rms,
                       ConstMatrix dy, Matrix dx, bool accumulate, std::span<float> dweight) {
  const auto dim = static_cast<int64_t>(weight.size());
  std::vector<double> sums(dweight.begin(), dweight.end());
  for (int64_t part = 0; part < x.rows * x.cols / dim; ++part) {
    const int64_t row = part * dim / x.cols, col = part * dim % x.cols;
    const float *in = x.row(row) + col, *grad = dy.row(row) + col;
    float* out = dx.row(row) + col;
    // As the forward pass returned it, and not computed anew: backward is judged for what it is
    // given.
    const double r = inv_rms[static_cast<size_t>(part)];
    double dot = 0;
    for (int64_t i = 0; i < dim; ++i) {
      dot += double{grad[i]} * weight[static_cast<size_t>(i)] * in[i];
      sums[static_cast<size_t>(i)] += double{grad[i]} * in[i] * r;
    }
    for (int64_t i = 0; i < dim; ++i) {
      double d = r * grad[i] * weight[static_cast<size_t>(i)] -
                 r * r * r / static_cast<double>(dim) * in[i] * dot;
      if (accumulate) d += out[i];
      out[i] = static_cast<float>(d);
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) dweight[i] = static_cast<float>(sums[i]);
}

}  // namespace tailrace::ref
