// Log-probabilities of chosen tokens. The sampler and the trainer both come here, so that a sampled
// log-probability and a recomputed one are the same bits.
//
// z' = z * inv_temperature. log-sum-exp: the vocabulary is cut into blocks of kVocabBlock; in each
// the maximum and the sum of exp(z' - block maximum) in 16 lanes joined in a fixed tree; the blocks
// are then joined in order. logprob(a) = z'[a] - lse, natural log. (design rules 2 and 3)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

constexpr int64_t kVocabBlock = 512;

// Of each row of logits [rows, vocab]: lse, and entropy (nats) when not empty.
void log_sum_exp(const Stream& stream, ConstMatrix logits, float inv_temperature,
                 std::span<float> lse, std::span<float> entropy);

// The fused head: logits = hidden W^T are made in chunks of rows and never kept.
//
//   hidden    [rows, dim]; weight: packed [vocab, dim]
//   targets   [rows] token ids
//   logprob, lse, entropy [rows]   entropy may be empty
void linear_logprob(const Stream& stream, Workspace& workspace, ConstMatrix hidden,
                    const PackedWeight& weight, std::span<const int32_t> targets,
                    float inv_temperature, std::span<float> logprob, std::span<float> lse,
                    std::span<float> entropy);

// Given dL/dlogprob and dL/dentropy [rows] (dentropy may be empty):
//   dlogits = inv_temperature * (dlogprob (onehot - p) - dentropy p (log p + entropy))
// Overwrites dhidden [rows, dim]; adds to dweight [vocab, dim]. `weight_rows` is W unpacked.
// Rows with dlogprob == 0 and dentropy == 0 cost nothing and give a zero row in dhidden.
void linear_logprob_backward(const Stream& stream, Workspace& workspace, ConstMatrix hidden,
                             const PackedWeight& weight, ConstMatrix weight_rows,
                             std::span<const int32_t> targets, float inv_temperature,
                             std::span<const float> lse, std::span<const float> entropy,
                             std::span<const float> dlogprob, std::span<const float> dentropy,
                             Matrix dhidden, Matrix dweight);

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim);

}  // namespace tailrace
