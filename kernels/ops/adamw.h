// AdamW (Loshchilov & Hutter 2019) on a flat range of parameters, and the norm that clips it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"

namespace tailrace {

// The numbers that an update turns on, in the memory of the device: what one op found out the next
// one reads there, and the host reads it when it wants to. Zeros before the first update.
struct UpdateState {
  double sum_of_squares = 0;  // of all gradients, by sum_of_squares()
  // By begin_update():
  double grad_norm = 0;          // L2, before clipping
  int64_t updates = 0;           // applied, this one included; bias correction counts them
  int64_t skipped = 0;           // refused, this one included
  float lr = 0, grad_scale = 0;  // adamw() multiplies gradients by the latter first
  bool skips = false;            // this update is refused
};

// The start of an update, from its sum of squares.
//
// A norm that is not finite is that of a bad gradient, since squares of finite floats do not
// overflow a double sum: the update skips. It counts as skipped and not as an update, because the
// moments do not see it; lr and grad_scale become 0.
// Otherwise it counts as an update, has the rate of its number, and clips:
//   grad_scale = min(1, max_grad_norm / (grad_norm + 1e-6)), in double
// The 1e-6 is that of PyTorch's clip_grad_norm_, which the golden updates were made with.
struct BeginUpdate {
  std::span<UpdateState> state;  // [1]
  // [at least 1] of update number first_rate and of those behind it; the last one also of all
  // further ones.
  std::span<const float> rates;
  int64_t first_rate = 1;    // at most the number of this update
  double max_grad_norm = 0;  // 0: no clipping, grad_scale is 1
};
void begin_update(const Stream& stream, const BeginUpdate& args);

struct AdamWConstants {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
};

// g = grad_scale * gradient, t = updates; m and v are the means of g and g^2 that decay with b1, b2
// p -= lr * wd * p;  then p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// Bias correction in double. parameters, gradients, m, v: same length, all float32.
//
// An update that skips writes nothing.
struct AdamW {
  std::span<const UpdateState> state;  // [1] as begin_update() left it
  AdamWConstants constants;
  std::span<float> parameters;
  std::span<const float> gradients;
  std::span<float> m, v;
};
void adamw(const Stream& stream, const AdamW& args);

// sum[0] = sum of the squares, in double, in an order that the size of x decides: on the CPU blocks
// of 4096 elements summed in order.
constexpr int kSquaresBlocks = 512;  // most blocks on a GPU, each of which leaves a sum in scratch
struct SumOfSquares {
  std::span<const float> x;
  std::span<double> sum;           // [1]
  std::span<double> scratch = {};  // [kSquaresBlocks] on a GPU, not read on the CPU
};
void sum_of_squares(const Stream& stream, const SumOfSquares& args);

}  // namespace tailrace
