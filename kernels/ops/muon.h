// Muon (Jordan 2024; scaled as in Moonlight, 2502.16982): an update of one weight matrix whose
// singular values are all about the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/adamw.h"

namespace tailrace {

struct MuonConstants {
  float momentum = 0.95f, weight_decay = 0;
};

// g = grad_scale * gradient;  b = mu * b + g, kept;  u = g + mu * b (Nesterov)
// X = u / (Frobenius norm of u + 1e-7), transposed where u has more rows than columns
// five times:  A = X X^T;  X = (3.4445 I - 4.775 A + 2.0315 A A) X
// p -= lr * wd * p;  then p -= lr * 0.2 * sqrt(max(rows, cols)) * X
//
// The five iterations of Newton and Schulz bring each singular value of X, from 1 down to some
// thousandths, into about 0.7 to 1.2; smaller ones stay below. The factor gives the update of a
// matrix of full rank the root mean square of one of AdamW, so that both share a rate and a decay.
//
//   parameters, gradients, momentum  [rows, cols], float32; they do not alias
//
// An element of a product is one accumulator, k ascending, as in linear(); the norm is
// sum_of_squares() of X. The number of threads changes no bit. An update that skips writes nothing.
struct Muon {
  std::span<const UpdateState> state;  // [1] as begin_update() left it
  MuonConstants constants;
  Matrix parameters;
  ConstMatrix gradients;
  Matrix momentum;
};
void muon(const Stream& stream, Workspace& workspace, const Muon& args);
size_t muon_workspace_bytes(int64_t rows, int64_t cols);

}  // namespace tailrace
