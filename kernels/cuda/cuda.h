// The ops on a GPU, as its own sources and its provider see them. Their contracts are in
// kernels/ops, whose names dispatch.cc forwards here. There are no CUDA types, so that host code
// builds without a toolkit.
//
// Operands of products are float32 or bfloat16, as the weights: bfloat16 goes through tensor cores,
// float32 through the ordinary units and is there to check by. Every sum has an order that no other
// row, no cut of a prompt and no page decides (design rule 3):
//   product    bfloat16: over k in steps of 16 of mma.sync, in slices that the weight's shape alone
//              decides, added in their order; float32: one fused multiply-add a term, k ascending
//   gradients  of products: one accumulator over k (rows of W, or tokens), in the same steps
//   attention  chunks of kChunk absolute positions, each by tiles with a running maximum; chunks
//              joined in their order; backward: over the positions or the rows of a sequence in
//              steps of 16, ascending
//   norms      a block's tree over the row
//   softmax    blocks of kVocabBlock logits, then the blocks (log_softmax.cuh); a draw inverts the
//              cumulative distribution over the same blocks
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/all.h"

namespace tailrace::cuda {

#define TR_OP(op, Args) void op(const Stream& stream, const Args& args);
#define TR_OP_SCRATCH(op, Args) \
  void op(const Stream& stream, Workspace& workspace, const Args& args);
#include "kernels/ops/common.inc"
#undef TR_OP
#undef TR_OP_SCRATCH

// Row-major [out, in], rows padded with zeros to kWeightAlignment elements. `master` is float32 in
// the memory of the CPU or of the device, `memory` of the device.
constexpr int64_t kWeightAlignment = 64;
Weight pack_weight(const Stream& stream, ConstTensor master, Dtype dtype,
                   std::span<std::byte> memory);
void unpack_rows(const Stream& stream, const Weight& weight, int64_t first, Matrix rows);
size_t weight_bytes(Dtype dtype, int64_t out, int64_t in);
template <class T>
MatrixView<const T> rows_of(const Weight& weight) {
  const int64_t stride = (weight.in + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  return {reinterpret_cast<const T*>(weight.data), weight.out, weight.in, stride};
}
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in);
// The workspace of up to `rows` rows in a batch.
size_t attention_workspace_bytes(int64_t rows, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context);
size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim);
size_t sample_workspace_bytes(int64_t rows, int64_t vocab);

}  // namespace tailrace::cuda
