#include "kernels/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void begin_update(const BeginUpdate& args) {
  UpdateState state = args.state[0];
  state.grad_norm = std::sqrt(state.sum_of_squares);
  state.skips = !std::isfinite(state.grad_norm);
  if (state.skips) {
    state.skipped += 1;
    state.lr = 0;
    state.grad_scale = 0;
  } else {
    state.updates += 1;
    const int64_t behind = std::ssize(args.rates) - 1;
    state.lr = args.rates[static_cast<size_t>(std::min(state.updates - args.first_rate, behind))];
    // The 1e-6 is that of torch.nn.utils.clip_grad_norm_.
    const double clipped = std::min(1.0, args.max_grad_norm / (state.grad_norm + 1e-6));
    state.grad_scale = args.max_grad_norm > 0 ? static_cast<float>(clipped) : 1.0f;
  }
  args.state[0] = state;
}

void adamw(const AdamW& args) {
  const auto& [states, constants, parameters, gradients, m, v] = args;
  const UpdateState& state = states[0];
  // A gradient that is not finite changes nothing: neither weights nor moments, and it is not
  // counted among the updates of the bias correction.
  if (state.skips) return;
  const double beta1 = constants.beta1, beta2 = constants.beta2, lr = state.lr;
  const auto t = static_cast<double>(state.updates);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double g = double{gradients[i]} * state.grad_scale;
    const double m1 = beta1 * m[i] + (1 - beta1) * g;
    const double v1 = beta2 * v[i] + (1 - beta2) * g * g;
    double p = parameters[i];
    // Decay is decoupled (Loshchilov & Hutter 2019) and takes the weight before the step.
    p -= lr * constants.weight_decay * p;
    p -= lr * (m1 / (1 - std::pow(beta1, t))) /
         (std::sqrt(v1 / (1 - std::pow(beta2, t))) + constants.eps);
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
