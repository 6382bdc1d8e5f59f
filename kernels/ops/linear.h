// Matrix products of a linear layer y = x W^T (+ bias), W stored [out, in] as in Hugging Face
// files.
//
// Each output element is a sum over k in an order that the shape of W alone decides, whatever the
// number of rows, the tile, or the thread count. That is what makes a token's logits independent of
// the batch that it shares (design rule 3). On the CPU, and on a GPU in float32: one accumulator,
// k ascending, one fused multiply-add a term; in pairs (kernels/cpu/gemm.h) two of them a pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// The values of a weight W [out, in], for all who read them: the forward product, the gradient to
// its input, rows of an embedding. Made once a version from the master weights, in a form of the
// device: panels that the CPU's product reads in order, padded rows on a GPU. Borrowed memory.
//
// Elements are kF32 or kBF16, to which master weights are rounded (to nearest, ties to even). On
// a GPU, and on a CPU that multiplies in pairs (Isa::kAvx512Bf16), a product with kBF16 rounds its
// other operand to it too; on other CPUs it is one of floats.
struct Weight {
  Dtype dtype = Dtype::kF32;
  const std::byte* data = nullptr;
  int64_t out = 0, in = 0;
  Device device = {};
  // Between two reads of it more weights are read than a cache holds. Changes no bit: the CPU then
  // asks for its lines ahead where few rows wait for them.
  bool from_memory = false;
};

// Bytes that pack_weight() writes (padded as the form of the device wants it).
size_t weight_bytes(Dtype dtype, int64_t out, int64_t in, Device device = {});

// `master` is float32 in memory of the CPU, and then this is done when it returns; or of the
// stream's device, and then in the order of the stream. `memory` [weight_bytes()] of the stream's
// device, aligned to kMemoryAlignment.
Weight pack_weight(const Stream& stream, ConstTensor master, Dtype dtype,
                   std::span<std::byte> memory);

// Rows that begin at a multiple of this are a weight of their own, weight_bytes() of the rows
// before them further on. So a weight can be packed piece by piece.
constexpr int64_t kWeightRows = 32;

// The way back: `rows` [n, in], memory of the CPU, becomes the rows [first, first + n) of the
// weight, the values that products read. Exact. Done when it returns.
void unpack_rows(const Stream& stream, const Weight& weight, int64_t first, Matrix rows);

// y[t, o] = bias[o] + sum over i of x[t, i] * W[o, i];   the sum starts at 0, the bias comes last.
//
//   x [tokens, in], y [tokens, out] (must not alias), bias [out] or empty
// tokens == 0 is allowed. `accumulate` adds the finished sum to y, which is float32.
struct Linear {
  ConstTensor x;
  Weight weight;
  std::span<const float> bias = {};
  Tensor y;
  bool accumulate = false;
};
void linear(const Stream& stream, const Linear& args);

// In backward an op need only repeat itself: the order of a sum may depend on the shapes of the
// whole batch. Gradients (dy, dx, dW, dbias) are float32. On a GPU a product with a bfloat16 weight
// or a bfloat16 x rounds its float32 operand to bfloat16; sums are float32. A CPU that multiplies
// in pairs rounds both operands of a bfloat16 weight's gradients.

// dx[t, i] (+)= sum over o of dy[t, o] * W[o, i]
// `accumulate` adds the finished sum to dx, otherwise dx is overwritten.
struct LinearGradInput {
  ConstTensor dy;
  Weight weight;
  Tensor dx;
  bool accumulate = false;
};
void linear_grad_input(const Stream& stream, Workspace& workspace, const LinearGradInput& args);

// dW[o, i] += sum over t of dy[t, o] * x[t, i]         the sum over t is finished, then added
//
// On a GPU x is an operand: float32 or bfloat16. `weight` is what W is in products, and decides the
// same on a CPU.
struct LinearGradWeight {
  ConstTensor dy, x;
  Tensor dweight;
  Dtype weight = Dtype::kF32;
};
void linear_grad_weight(const Stream& stream, Workspace& workspace, const LinearGradWeight& args);

// dbias[o] += sum over t of dy[t, o]
struct LinearGradBias {
  ConstTensor dy;
  std::span<float> dbias;
};
void linear_grad_bias(const Stream& stream, const LinearGradBias& args);

// Enough for either gradient of a layer with these sizes.
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in, Device device = {});

}  // namespace tailrace
