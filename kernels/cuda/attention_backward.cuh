// The common parts of the kernels of attention's backward pass (attention_backward.cu has the op).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

// A call as kernels take it, all pointers of the device.
struct BackwardCall {
  AttentionCall forward;  // q, the cache and the batch; no results
  const void* out = nullptr;
  const float *lse = nullptr, *dout = nullptr;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int64_t out_stride = 0, lse_stride = 0, dout_stride = 0;
  int64_t dq_stride = 0, dk_stride = 0, dv_stride = 0;
  float scale = 1;  // without log2(e)
  // Scratch: dout . out [tokens, heads], and dout as an operand [tokens, heads * dim], of bfloat16
  // alone.
  float* dots = nullptr;
  Bf16* dout_bf16 = nullptr;

  // The last token of a sequence of `num_tokens` that sees a position.
  __device__ int last_seen_by(int position, int num_tokens) const {
    const int window = forward.window;
    return window > 0 ? min(num_tokens - 1, position + window - 1) : num_tokens - 1;
  }
};

// dk, dv, then dq, from dots and dout_bf16.
void attention_backward_bf16(const Stream& stream, const BackwardCall& call);

}  // namespace tailrace::cuda
