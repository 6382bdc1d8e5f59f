#include "kernels/ops/adamw.h"

#include <cmath>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void adamw(const AdamWStep& step, std::span<float> parameters, std::span<const float> gradients,
           std::span<float> m, std::span<float> v) {
  const double beta1 = step.beta1, beta2 = step.beta2, lr = step.lr;
  const auto t = static_cast<double>(step.step);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double g = double{gradients[i]} * step.grad_scale;
    const double m1 = beta1 * m[i] + (1 - beta1) * g;
    const double v1 = beta2 * v[i] + (1 - beta2) * g * g;
    double p = parameters[i];
    // Decay is decoupled (Loshchilov & Hutter 2019) and takes the weight before the step.
    p -= lr * step.weight_decay * p;
    p -= lr * (m1 / (1 - std::pow(beta1, t))) /
         (std::sqrt(v1 / (1 - std::pow(beta2, t))) + step.eps);
    parameters[i] = static_cast<float>(p);
    m[i] = static_cast<float>(m1);
    v[i] = static_cast<float>(v1);
  }
}

double sum_of_squares(std::span<const float> x) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  return sum;
}

}  // namespace tailrace::ref
