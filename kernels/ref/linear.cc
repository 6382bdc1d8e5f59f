#include <cstddef>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void linear(ConstMatrix x, ConstMatrix weight, std::span<const float> bias, Matrix y) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t o = 0; o < weight.rows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < x.cols; ++i) sum += double{x.row(t)[i]} * weight.row(o)[i];
      if (!bias.empty()) sum += bias[static_cast<size_t>(o)];
      y.row(t)[o] = static_cast<float>(sum);
    }
  }
}

void linear_grad_input(ConstMatrix dy, ConstMatrix weight, Matrix dx, bool accumulate) {
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t i = 0; i < weight.cols; ++i) {
      // With what is there already inside the sum: one rounding, where the fast version has two.
      double sum = accumulate ? dx.row(t)[i] : 0.0;
      for (int64_t o = 0; o < weight.rows; ++o) sum += double{dy.row(t)[o]} * weight.row(o)[i];
      dx.row(t)[i] = static_cast<float>(sum);
    }
  }
}

void linear_grad_weight(ConstMatrix dy, ConstMatrix x, Matrix dweight) {
  for (int64_t o = 0; o < dy.cols; ++o) {
    for (int64_t i = 0; i < x.cols; ++i) {
      // Gradients of weights always add to what is there: micro-batches of one slot share the
      // buffer.
      double sum = dweight.row(o)[i];
      for (int64_t t = 0; t < dy.rows; ++t) sum += double{dy.row(t)[o]} * x.row(t)[i];
      dweight.row(o)[i] = static_cast<float>(sum);
    }
  }
}

void linear_grad_bias(ConstMatrix dy, std::span<float> dbias) {
  for (int64_t o = 0; o < dy.cols; ++o) {
    double sum = dbias[static_cast<size_t>(o)];
    for (int64_t t = 0; t < dy.rows; ++t) sum += dy.row(t)[o];
    dbias[static_cast<size_t>(o)] = static_cast<float>(sum);
  }
}

}  // namespace tailrace::ref
