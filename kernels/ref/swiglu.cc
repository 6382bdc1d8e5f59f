#include <cmath>
#include <numbers>

#include "kernels/ref/ref.h"

namespace tailrace::ref {
namespace {

struct Value {
  double act, slope;
};

Value activate(GateActivation activation, double g) {
  if (activation == GateActivation::kSilu) {
    const double s = 1 / (1 + std::exp(-g));
    // silu(g) = g s with s' = s (1 - s), so silu' = s + g s (1 - s).
    return {g * s, s * (1 + g * (1 - s))};
  }
  // The tanh form of GELU (Hendrycks & Gimpel 2016), which Gemma is trained with.
  const double k = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(k * (g + 0.044715 * g * g * g));
  return {0.5 * g * (1 + t),
          0.5 * (1 + t) + 0.5 * g * (1 - t * t) * k * (1 + 3 * 0.044715 * g * g)};
}

}  // namespace

void swiglu(ConstMatrix gate, ConstMatrix up, Matrix y, GateActivation activation) {
  for (int64_t t = 0; t < gate.rows; ++t) {
    for (int64_t i = 0; i < gate.cols; ++i)
      y.row(t)[i] = static_cast<float>(activate(activation, gate.row(t)[i]).act * up.row(t)[i]);
  }
}

void swiglu_backward(ConstMatrix gate, ConstMatrix up, ConstMatrix dy, Matrix dgate, Matrix dup,
                     GateActivation activation) {
  for (int64_t t = 0; t < gate.rows; ++t) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const double u = up.row(t)[i], d = dy.row(t)[i];
      const auto [act, slope] = activate(activation, gate.row(t)[i]);
      dgate.row(t)[i] = static_cast<float>(d * u * slope);
      dup.row(t)[i] = static_cast<float>(d * act);
    }
  }
}

}  // namespace tailrace::ref
