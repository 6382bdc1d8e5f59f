// The computation of a sparse layer's experts: products whose rows are grouped by expert
// (group_by_expert), and the sums that bring a token's rows together again.
//
// A row's result is that of linear() with the weight of its expert, to the last bit: it depends on
// no other row of the group (design rule 3). How many rows an expert has is read from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// The weights of all experts, of one shape and dtype: that of expert i lies i * bytes further than
// that of the first, bytes = weight_bytes(dtype, out, in).
struct WeightStack {
  Weight first;
  int64_t count = 0;
  size_t bytes = 0;  // of one

  Weight at(int64_t index) const {
    Weight weight = first;
    weight.data += static_cast<size_t>(index) * bytes;
    return weight;
  }
};

// y[r] = W[e] x[r] for the rows r of each expert e:  offsets[e] <= r < offsets[e + 1]
//
//   x [rows, in], y [rows, out] (must not alias), weights of [out, in], offsets [experts + 1]
// On a GPU x and y are operands or float32, as those of linear().
struct GroupedLinear {
  ConstTensor x;
  WeightStack weights;
  std::span<const int32_t> offsets;
  Tensor y;
};
void grouped_linear(const Stream& stream, const GroupedLinear& args);

// dx[r] = dy[r] W[e], overwritten; float32;  dy [rows, out], dx [rows, in]
struct GroupedGradInput {
  ConstTensor dy;
  WeightStack weights;
  std::span<const int32_t> offsets;
  Tensor dx;
};
void grouped_grad_input(const Stream& stream, Workspace& workspace, const GroupedGradInput& args);

// dW[e] += sum over the rows r of e of dy[r]^T x[r], in their order; finished, then added
struct GroupedGradWeight {
  ConstTensor dy, x;
  std::span<const int32_t> offsets;
  MatrixStack<float> dweights;
  Dtype weight = Dtype::kF32;  // as that of LinearGradWeight
};
void grouped_grad_weight(const Stream& stream, Workspace& workspace, const GroupedGradWeight& args);
// The workspace of both: linear_grad_workspace_bytes(tokens, out, in), since an expert has a token
// at most once.

// y[t] = sum over j of weights[t, j] * x[rows[t * k + j]], j ascending; without weights (no rows)
// each is 1.
//
//   x [tokens * k, dim], rows [tokens * k], weights [tokens, k] or no rows, y [tokens, dim]; all
//   float32
struct WeightedSum {
  ConstTensor x;
  std::span<const int32_t> rows;
  ConstTensor weights = {};
  Tensor y;
};
void weighted_sum(const Stream& stream, const WeightedSum& args);

// The step of backward at which a choice's weight meets its expert. With h[r] the input of the
// expert's last product and dh[r] the gradient to it, for a weight of 1:
//
//   dweights[t, j] = sum over i of dh[r, i] * h[r, i],  r = rows[t * k + j]
//   h[r] *= weights[t, j],  dh[r] *= weights[t, j]
//
//   h, dh [tokens * k, dim], rows [tokens * k], weights and dweights [tokens, k]; h is an operand,
//   the others float32
// Sums are float32, in an order that dim decides: on the CPU 16 interleaved lanes joined in a fixed
// tree.
struct WeightBackward {
  Tensor h, dh;
  std::span<const int32_t> rows;
  ConstTensor weights;
  Tensor dweights;
};
void weight_backward(const Stream& stream, const WeightBackward& args);

}  // namespace tailrace
