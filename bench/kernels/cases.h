// The families of ops that the kernels bench measures. Each checks what it computes against the
// reference, then times it.
#pragma once

#include <cstdint>

#include "bench/kernels/harness.h"

namespace tailrace {

// y = x W^T, and with `gradients` those to x and to W.
void bench_linear(KernelHarness& bench, int64_t tokens, int64_t in, int64_t out, bool gradients);

struct AttentionShape {
  int64_t sequences = 0;
  int context = 0;
  int queries = 0;  // rows at the end of each sequence; as many as `context`: training
  int heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;  // 0: none
  int shared = 0;  // positions that each eight sequences begin with together, whole blocks
  Dtype cache = Dtype::kF32;
};
void bench_attention(KernelHarness& bench, const AttentionShape& shape);

// Norm and gated activation over rows, with their gradients.
void bench_rows(KernelHarness& bench, int64_t tokens, int64_t dim, int64_t ffn);
// The fused head: log-probabilities of tokens, with their gradients.
void bench_head(KernelHarness& bench, int64_t tokens, int64_t dim, int64_t vocab);

}  // namespace tailrace
