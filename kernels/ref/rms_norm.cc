#include <cmath>
#include <cstddef>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void rms_norm(ConstMatrix x, std::span<const float> weight, float eps, Matrix y,
              std::span<float> inv_rms) {
  for (int64_t t = 0; t < x.rows; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < x.cols; ++i) squares += double{x.row(t)[i]} * x.row(t)[i];
    double inv = 1 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
    if (!inv_rms.empty()) inv_rms[static_cast<size_t>(t)] = static_cast<float>(inv);
    for (int64_t i = 0; i < x.cols; ++i) {
      y.row(t)[i] = static_cast<float>(x.row(t)[i] * inv * weight[static_cast<size_t>(i)]);
    }
  }
}

// y_i = x_i w_i r with r = (mean x^2 + eps)^(-1/2), so dr/dx_j = -r^3 x_j / dim.
void rms_norm_backward(ConstMatrix x, std::span<const float> weight, std::span<const float> inv_rms,
                       ConstMatrix dy, Matrix dx, bool accumulate, std::span<float> dweight) {
  for (int64_t i = 0; i < x.cols; ++i) {
    double sum = dweight[static_cast<size_t>(i)];
    for (int64_t t = 0; t < x.rows; ++t) {
      sum += double{dy.row(t)[i]} * x.row(t)[i] * inv_rms[static_cast<size_t>(t)];
    }
    dweight[static_cast<size_t>(i)] = static_cast<float>(sum);
  }
  for (int64_t t = 0; t < x.rows; ++t) {
    // As the forward pass returned it, and not computed anew: backward is judged for what it is
    // given.
    const double r = inv_rms[static_cast<size_t>(t)];
    double dot = 0;
    for (int64_t i = 0; i < x.cols; ++i) {
      dot += double{dy.row(t)[i]} * weight[static_cast<size_t>(i)] * x.row(t)[i];
    }
    for (int64_t i = 0; i < x.cols; ++i) {
      double d = r * dy.row(t)[i] * weight[static_cast<size_t>(i)] -
                 r * r * r / static_cast<double>(x.cols) * x.row(t)[i] * dot;
      if (accumulate) d += dx.row(t)[i];
      dx.row(t)[i] = static_cast<float>(d);
    }
  }
}

}  // namespace tailrace::ref
