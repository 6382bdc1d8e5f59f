#include <cmath>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void swiglu(ConstMatrix gate, ConstMatrix up, Matrix y) {
  for (int64_t t = 0; t < gate.rows; ++t) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const double g = gate.row(t)[i];
      y.row(t)[i] = static_cast<float>(g / (1 + std::exp(-g)) * up.row(t)[i]);
    }
  }
}

void swiglu_backward(ConstMatrix gate, ConstMatrix up, ConstMatrix dy, Matrix dgate, Matrix dup) {
  for (int64_t t = 0; t < gate.rows; ++t) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const double g = gate.row(t)[i], u = up.row(t)[i], d = dy.row(t)[i];
      const double s = 1 / (1 + std::exp(-g));
      // silu(g) = g s with s' = s (1 - s), so silu' = s + g s (1 - s).
      dgate.row(t)[i] = static_cast<float>(d * u * s * (1 + g * (1 - s)));
      dup.row(t)[i] = static_cast<float>(d * g * s);
    }
  }
}

}  // namespace tailrace::ref
