// Log-probabilities of chosen tokens. The sampler and the trainer both come here, so that a sampled
// log-probability and a recomputed one are the same bits.
//
// z' = z * inv_temperature. log-sum-exp: the vocabulary is cut into blocks of kVocabBlock; each has
// its sum of exp, in an order of its own, and the blocks are joined in an order that their number
// decides. On the CPU: exp(z' - block maximum) in 16 lanes joined in a fixed tree, the blocks one
// after the other. logprob(a) = z'[a] - lse, natural log. (design rules 2 and 3)
//
// Truncated sampling keeps a set K of the vocabulary. lse_K is the log-sum-exp over K alone: its
// members in ascending order, as if they stood side by side in a row of their own. The set of all
// tokens thus gives the bits of lse. log-mass = min(lse_K - lse, 0), and the log-probability of a
// draw from K is logprob - log-mass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

constexpr int64_t kVocabBlock = 512;

// The ids of K for each row, ascending and one behind the other; a row without ids has the whole
// vocabulary. Borrowed.
struct KeptSets {
  std::span<const int64_t> offsets = {};  // [rows + 1] in ids; empty: all rows have the whole
  std::span<const int32_t> ids = {};

  bool empty() const { return offsets.empty(); }
  int64_t rows() const { return empty() ? 0 : std::ssize(offsets) - 1; }
  std::span<const int32_t> of(size_t row) const {
    if (empty()) return {};
    const auto begin = static_cast<size_t>(offsets[row]);
    return ids.subspan(begin, static_cast<size_t>(offsets[row + 1]) - begin);
  }
  KeptSets slice(int64_t begin, int64_t end) const {
    if (empty()) return {};
    return {offsets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin) + 1), ids};
  }
};

// The logarithm of the share of the probability that K has. Rounding alone could put it above 0.
inline float log_mass(float kept_lse, float lse) { return std::min(kept_lse - lse, 0.0f); }

// For each row of logits [rows, vocab]: lse, and entropy (nats) when not empty.
struct LogSumExp {
  ConstTensor logits;
  float inv_temperature = 1;
  std::span<float> lse, entropy = {};
};
void log_sum_exp(const Stream& stream, const LogSumExp& args);

// lse_K of each row of logits [rows, vocab] that has a set; the others are left as they are.
//   kept, kept_lse [rows]
struct KeptLogSumExp {
  ConstTensor logits;
  KeptSets kept;
  float inv_temperature = 1;
  std::span<float> kept_lse;
};
void kept_log_sum_exp(const Stream& stream, const KeptLogSumExp& args);

// The head of a model over some rows: logits = hidden W^T.
struct LogprobHead {
  ConstTensor hidden;                // [rows, dim]
  Weight weight;                     // [vocab, dim]
  std::span<const int32_t> targets;  // [rows] token ids
  float inv_temperature = 1;
  KeptSets kept = {};  // [rows] or empty; a set holds its row's target
};

// All [rows].
struct LogprobRows {
  std::span<float> logprob;  // of the target: where the row has a set, that of a draw from it
  std::span<float> lse;      // of the whole vocabulary
  std::span<float> entropy;  // of the whole distribution, whatever is kept; may be empty
  Tensor logits = {};        // [rows, vocab] for the backward pass, or no rows; CPU alone
};

// The fused head: logits are made in chunks of rows, and kept where there is a place for them.
struct LinearLogprob {
  LogprobHead head;
  LogprobRows out;
};
void linear_logprob(const Stream& stream, Workspace& workspace, const LinearLogprob& args);

struct LogprobGradient {
  std::span<const float> lse, entropy;        // [rows] as linear_logprob() gave them
  std::span<const float> dlogprob, dentropy;  // [rows] dL/dlogprob, dL/dentropy
  Tensor dhidden;                             // [rows, dim] overwritten
  Tensor dweight;                             // [vocab, dim] added to; no rows: nobody asks
  // [rows, vocab] as linear_logprob() gave them; no rows: they are made again, to the same bits.
  ConstTensor logits = {};
};

// dentropy may be empty, and then entropy too:
//   dlogits = inv_temperature * (dlogprob (onehot - p_K) - dentropy p (log p + entropy))
// with p = exp(z' - lse), and p_K = exp(z' - lse_K) in the row's set and 0 outside it.
// Rows with dlogprob == 0 and dentropy == 0 cost nothing and give a zero row in dhidden.
struct LinearLogprobBackward {
  LogprobHead head;
  LogprobGradient gradient;
};
void linear_logprob_backward(const Stream& stream, Workspace& workspace,
                             const LinearLogprobBackward& args);

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim, Device device = {});

}  // namespace tailrace
