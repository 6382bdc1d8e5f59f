// AdamW (Loshchilov & Hutter 2019) on a flat range of parameters, and the norm that clips it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"

namespace tailrace {

struct AdamWStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  float grad_scale = 1;  // clipping: gradients are multiplied by it first
  int64_t step = 1;      // counts from 1; bias correction in double
};

// p -= lr * wd * p;  then p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// parameters, gradients, m, v: same length, all float32.
struct AdamW {
  AdamWStep step;
  std::span<float> parameters;
  std::span<const float> gradients;
  std::span<float> m, v;
};
void adamw(const Stream& stream, const AdamW& args);

// sum[0] = sum of the squares, in double, in blocks of 4096 elements summed in order: independent
// of the thread count.
struct SumOfSquares {
  std::span<const float> x;
  std::span<double> sum;  // [1]
};
void sum_of_squares(const Stream& stream, const SumOfSquares& args);

}  // namespace tailrace
