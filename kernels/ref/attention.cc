#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

namespace {

struct Place {
  float* key = nullptr;  // element d at key[d * block_tokens]
  float* value = nullptr;
};

Place place(const AttentionBatch& batch, const KvLayer& kv, int64_t sequence, int64_t kv_head,
            int64_t position) {
  const int64_t bt = kv.block_tokens;
  // Keys lie transposed in a block, [head_dim, block_tokens], so that the scores of neighbouring
  // positions are computed side by side; values lie as they are read, [block_tokens, head_dim].
  const int64_t id =
      batch.block_tables[static_cast<size_t>(sequence * batch.max_blocks + position / bt)];
  const int64_t block = (id * kv.num_kv_heads + kv_head) * kv.head_dim * bt;
  return {.key = kv.host_keys() + block + position % bt,
          .value = kv.host_values() + block + position % bt * kv.head_dim};
}

// Calls visit(sequence, row) for each row of the batch.
template <class Visit>
void for_rows(const AttentionBatch& batch, Visit&& visit) {
  for (int64_t s = 0; s < batch.num_sequences(); ++s) {
    for (int64_t row = batch.seq_offsets[static_cast<size_t>(s)];
         row < batch.seq_offsets[static_cast<size_t>(s) + 1]; ++row) {
      visit(s, row);
    }
  }
}

struct Probabilities {
  std::vector<double> p;  // 0 before the window
  double lse = 0;
};

Probabilities probabilities(const float* q, const AttentionHeads& args, const AttentionBatch& batch,
                            const KvLayer& kv, int64_t sequence, int64_t kv_head,
                            int64_t position) {
  Probabilities result;
  double max = -std::numeric_limits<double>::infinity();
  const int64_t first = args.first_seen(position);
  for (int64_t j = first; j <= position; ++j) {
    const float* key = place(batch, kv, sequence, kv_head, j).key;
    double score = 0;
    for (int64_t d = 0; d < kv.head_dim; ++d) score += double{q[d]} * key[d * kv.block_tokens];
    result.p.push_back(double{args.scale} * score);
    max = std::max(max, result.p.back());
  }
  double sum = 0;
  for (double s : result.p) sum += std::exp(s - max);
  result.lse = max + std::log(sum);
  // From the log-sum-exp, as backward has it; e^(s - max) / sum is the same number.
  for (double& s : result.p) s = std::exp(s - result.lse);
  // Indexed by position, also where a window begins later.
  result.p.insert(result.p.begin(), static_cast<size_t>(first), 0.0);
  return result;
}

}  // namespace

void kv_write(ConstMatrix k, ConstMatrix v, const AttentionBatch& batch, const KvLayer& kv) {
  for_rows(batch, [&](int64_t s, int64_t row) {
    for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
      Place to = place(batch, kv, s, h, batch.positions[static_cast<size_t>(row)]);
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        to.key[d * kv.block_tokens] = k.row(row)[h * kv.head_dim + d];
        to.value[d] = v.row(row)[h * kv.head_dim + d];
      }
    }
  });
}

void kv_copy(const KvCopy& args) {
  const KvLayer& kv = args.kv;
  // [blocks, heads, dim, positions] and [blocks, heads, positions, dim]
  const auto key = [&](int64_t block, int64_t h, int64_t d, int64_t p) -> float& {
    return kv.host_keys()[((block * kv.num_kv_heads + h) * kv.head_dim + d) * kv.block_tokens + p];
  };
  const auto value = [&](int64_t block, int64_t h, int64_t d, int64_t p) -> float& {
    return kv
        .host_values()[((block * kv.num_kv_heads + h) * kv.block_tokens + p) * kv.head_dim + d];
  };
  for (int h = 0; h < kv.num_kv_heads; ++h) {
    for (int d = 0; d < kv.head_dim; ++d) {
      for (int p = 0; p < args.tokens; ++p) {
        key(args.to, h, d, p) = key(args.from, h, d, p);
        value(args.to, h, d, p) = value(args.from, h, d, p);
      }
    }
  }
}

void attention(ConstMatrix q, const AttentionHeads& args, const AttentionBatch& batch,
               const KvLayer& kv, Matrix out, Matrix lse) {
  const int64_t dim = kv.head_dim, group = args.num_heads / kv.num_kv_heads;
  for_rows(batch, [&](int64_t s, int64_t row) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const int64_t position = batch.positions[static_cast<size_t>(row)];
      auto probs = probabilities(q.row(row) + h * dim, args, batch, kv, s, h / group, position);
      std::vector<double> sum(static_cast<size_t>(dim));
      for (int64_t j = args.first_seen(position); j <= position; ++j) {
        const float* value = place(batch, kv, s, h / group, j).value;
        for (int64_t d = 0; d < dim; ++d) {
          sum[static_cast<size_t>(d)] += probs.p[static_cast<size_t>(j)] * value[d];
        }
      }
      for (int64_t d = 0; d < dim; ++d) {
        out.row(row)[h * dim + d] = static_cast<float>(sum[static_cast<size_t>(d)]);
      }
      if (lse.data != nullptr) lse.row(row)[h] = static_cast<float>(probs.lse);
    }
  });
}

void attention_backward(ConstMatrix q, ConstMatrix dout, const AttentionHeads& args,
                        const AttentionBatch& batch, const KvLayer& kv, Matrix dq, Matrix dk,
                        Matrix dv) {
  const int64_t dim = kv.head_dim, group = args.num_heads / kv.num_kv_heads;
  // Summed in double for all queries and rounded once, so that the oracle's own error stays far
  // below what it is to judge.
  std::vector<double> k_sums(static_cast<size_t>(dk.rows * dk.cols)), v_sums(k_sums.size());
  for_rows(batch, [&](int64_t s, int64_t row) {
    const int64_t first = batch.seq_offsets[static_cast<size_t>(s)];
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const float *query = q.row(row) + h * dim, *grad = dout.row(row) + h * dim;
      const int64_t position = batch.positions[static_cast<size_t>(row)];
      auto probs = probabilities(query, args, batch, kv, s, h / group, position);
      std::vector<double> dp(probs.p.size()), dquery(static_cast<size_t>(dim));
      double mean = 0;  // of dp under p
      for (int64_t j = args.first_seen(position); j <= position; ++j) {
        const auto i = static_cast<size_t>(j);
        const float* value = place(batch, kv, s, h / group, j).value;
        for (int64_t d = 0; d < dim; ++d) dp[i] += double{grad[d]} * value[d];
        mean += probs.p[i] * dp[i];
      }
      for (int64_t j = args.first_seen(position); j <= position; ++j) {
        const auto i = static_cast<size_t>(j);
        // The derivative of a softmax: dp_i / ds_j = p_i (delta_ij - p_j).
        const double dscore = double{args.scale} * probs.p[i] * (dp[i] - mean);
        const float* key = place(batch, kv, s, h / group, j).key;
        const auto at = static_cast<size_t>((first + j) * dk.cols + h / group * dim);
        for (int64_t d = 0; d < dim; ++d) {
          const auto c = static_cast<size_t>(d);
          dquery[c] += dscore * key[d * kv.block_tokens];
          k_sums[at + c] += dscore * query[d];
          v_sums[at + c] += probs.p[i] * grad[d];
        }
      }
      for (int64_t d = 0; d < dim; ++d) {
        dq.row(row)[h * dim + d] = static_cast<float>(dquery[static_cast<size_t>(d)]);
      }
    }
  });
  for (int64_t r = 0; r < dk.rows; ++r) {
    for (int64_t c = 0; c < dk.cols; ++c) {
      dk.row(r)[c] = static_cast<float>(k_sums[static_cast<size_t>(r * dk.cols + c)]);
      dv.row(r)[c] = static_cast<float>(v_sums[static_cast<size_t>(r * dk.cols + c)]);
    }
  }
}

}  // namespace tailrace::ref
