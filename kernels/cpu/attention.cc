#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/attention_parts.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

using namespace attention_parts;
using namespace attention_tiles;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// Over the context: scores and the sum of values.
constexpr int64_t kForwardProducts = 2;

// scores[q * score_stride + position]
template <int kCount>
void key_scores(const float* queries, const Sequence& seq, const QueryBlock& block, float* scores,
                int64_t score_stride) {
  const int64_t context = block.context(), origin = block.origin();
  auto group_at = [&](int64_t i) {
    return seq.key_group(origin / kLanes + i, block.first_seen[0], context);
  };
  // Up to the context of the last query. Lanes behind a query's own position hold later keys, or
  // what an earlier owner of the block left, and others lie before its window; exponentiate()
  // selects them away.
  const int64_t groups = (padded(context) - origin) / kLanes;
  scores += origin;
  if (seq.kv.block_tokens >= kLanes) {
    score_all<kCount, false>(queries, seq.kv.head_dim, groups, group_at, seq.kv.block_tokens,
                             scores, score_stride);
  } else {
    score_all<kCount, true>(queries, seq.kv.head_dim, groups, group_at, seq.kv.block_tokens, scores,
                            score_stride);
  }
}

// Scores to e^(scaled score - maximum), 0 beyond what the query sees; the maximum and the sum.
struct SoftmaxSum {
  float max = 0;
  float sum = 0;
};
SoftmaxSum exponentiate(float* scores, int64_t first_seen, int64_t position, float scale) {
  const int64_t n = position + 1, begin = first_seen / kLanes * kLanes;
  const Vec16 factor = simd::broadcast(scale), lowest = simd::broadcast(kMinusInf);
  Vec16 max = lowest;
  for (int64_t j = begin; j < n; j += kLanes) {
    Vec16 s = simd::select_first(n - j, simd::mul(simd::load(scores + j), factor), lowest);
    if (j < first_seen) s = simd::select_first(first_seen - j, lowest, s);
    simd::store(scores + j, s);
    max = simd::max(max, s);
  }
  // The maximum is known before the first term is added, so no sum is rescaled half-way: a softmax
  // in one pass would round where its chunks end. A lane is a position modulo 16, whatever the cut
  // of the prefill was.
  SoftmaxSum result{.max = simd::reduce_max(max)};
  const Vec16 shift = simd::broadcast(result.max);
  Vec16 sum = simd::zero();
  for (int64_t j = begin; j < n; j += kLanes) {
    Vec16 e = simd::exp(simd::sub(simd::load(scores + j), shift));
    simd::store(scores + j, e);
    sum = simd::add(sum, e);
  }
  result.sum = simd::reduce_add(sum);
  return result;
}

// out[q] = (sum over the j that it sees of weights[q][j] * value[j]) / sum
template <int kCount, int kVectors>
void value_sums(const float* weights, int64_t weight_stride, const Sequence& seq,
                const QueryBlock& block, int64_t col, const float* inv_sum, Matrix out) {
  const int64_t head_dim = seq.kv.head_dim, left = head_dim - col;
  const int64_t block_tokens = seq.kv.block_tokens;
  Vec16 acc[kCount][kVectors];
  for (auto& row : acc) {
    for (auto& a : row) a = simd::zero();
  }
  auto value_at = [&](int64_t j) {
    return seq.values(j / block_tokens) + (j % block_tokens) * head_dim + col;
  };
  // One query at a time, so that no position that it does not see ever touches it.
  auto add_own = [&](int q, int64_t begin, int64_t end, Vec16(&own)[1][kVectors]) {
    for (int64_t j = begin; j < end; ++j)
      weighted_rows<1, kVectors>(weights + q * weight_stride + j, weight_stride, value_at(j),
                                 head_dim, 1, left, own);
  };
  // All queries see what the last one's window has of the positions of the first one. The few
  // before, and the few beyond, are each query's own.
  const int64_t begin = block.first_seen[kCount - 1];
  const int64_t common = std::max(begin, block.position[0] + 1);
  if (block.first_seen[0] < begin) {
    for (int q = 0; q < kCount; ++q) {
      Vec16 own[1][kVectors];
      for (auto& a : own[0]) a = simd::zero();
      add_own(q, block.first_seen[q], std::min(begin, block.position[q] + 1), own);
      for (int v = 0; v < kVectors; ++v) acc[q][v] = own[0][v];
    }
  }
  for (int64_t j = begin; j < common;) {
    const int64_t count = std::min(block_tokens - j % block_tokens, common - j);
    weighted_rows<kCount, kVectors>(weights + j, weight_stride, value_at(j), head_dim, count, left,
                                    acc);
    j += count;
  }
  for (int q = 0; q < kCount; ++q) {
    Vec16 own[1][kVectors];
    for (int v = 0; v < kVectors; ++v) own[0][v] = acc[q][v];
    add_own(q, common, block.position[q] + 1, own);
    for (int v = 0; v < kVectors; ++v) {
      simd::store(out.row(block.row[q]) + block.col[q] + col + v * kLanes,
                  simd::mul(own[0][v], simd::broadcast(inv_sum[q])), left - v * kLanes);
    }
  }
}

template <int kCount>
void forward_block(const Sequence& seq, const QueryBlock& block, ConstMatrix q, float scale,
                   float* queries, float* scores, int64_t score_stride, Matrix out, Matrix lse) {
  const int64_t head_dim = seq.kv.head_dim;
  // A copy: `out` may be q, and this block overwrites its own queries and nobody else's.
  block.gather(q, head_dim, queries);
  key_scores<kCount>(queries, seq, block, scores, score_stride);
  float inv_sum[kCount];
  for (int i = 0; i < kCount; ++i) {
    SoftmaxSum sum =
        exponentiate(scores + i * score_stride, block.first_seen[i], block.position[i], scale);
    // The largest score is in the sum as e^0 = 1, so it is at least 1. One division a query, then a
    // product an output.
    inv_sum[i] = 1.0f / sum.sum;
    if (lse.data != nullptr) lse.row(block.row[i])[block.head[i]] = sum.max + std::log(sum.sum);
  }
  // As wide as the sums fit in registers: few queries by two vectors would wait for their own last
  // multiply-adds. With AVX-512 eight queries times two vectors are 16 sums; four would spill.
  constexpr int kWide = kCount * 4 <= kSumsAtOnce ? 4 : 2;
  for (int64_t col = 0; col < head_dim;) {
    const int64_t left = head_dim - col;
    if (kWide > 2 && left > 3 * kLanes) {
      value_sums<kCount, kWide>(scores, score_stride, seq, block, col, inv_sum, out);
      col += kWide * kLanes;
    } else if (left > kLanes) {
      value_sums<kCount, 2>(scores, score_stride, seq, block, col, inv_sum, out);
      col += 2 * kLanes;
    } else {
      value_sums<kCount, 1>(scores, score_stride, seq, block, col, inv_sum, out);
      col += kLanes;
    }
  }
}

using ForwardBlock = void (*)(const Sequence&, const QueryBlock&, ConstMatrix, float, float*,
                              float*, int64_t, Matrix, Matrix);
// A function a number of queries, because the sums live in registers and arrays of those need
// constant sizes.
constexpr ForwardBlock kForwardBlocks[kQueries] = {
    forward_block<1>, forward_block<2>, forward_block<3>, forward_block<4>,
    forward_block<5>, forward_block<6>, forward_block<7>, forward_block<8>};

}  // namespace

void kv_write(const Stream& stream, const KvWrite& args) {
  const auto [k, v, batch, kv] = args;
  const int64_t head_dim = kv.head_dim, block_tokens = kv.block_tokens;
  TR_CHECK(k.rows == batch.num_tokens() && v.rows == k.rows &&
               k.cols == kv.num_kv_heads * head_dim && v.cols == k.cols,
           "k [{}, {}], v [{}, {}], {} tokens", k.rows, k.cols, v.rows, v.cols, batch.num_tokens());
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(k.cols, 1));
  parallel_for(stream, k.rows, grain, [&](int64_t begin, int64_t end) {
    auto next = std::upper_bound(batch.seq_offsets.begin(), batch.seq_offsets.end(), begin);
    int64_t index = next - batch.seq_offsets.begin() - 1;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= batch.seq_offsets[static_cast<size_t>(index) + 1]) ++index;
      const int64_t position = batch.positions[static_cast<size_t>(row)];
      const int64_t at = position % block_tokens;
      for (int h = 0; h < kv.num_kv_heads; ++h) {
        Sequence seq{.batch = batch, .kv = kv, .index = index, .kv_head = h};
        float* keys = seq.keys(position / block_tokens) + at;
        float* value = seq.values(position / block_tokens) + at * head_dim;
        const float* key_in = k.row(row) + h * head_dim;
        const float* value_in = v.row(row) + h * head_dim;
        // Transposed once when it is written, since it is read as columns by every later query.
        for (int64_t d = 0; d < head_dim; ++d) keys[d * block_tokens] = key_in[d];
        std::copy_n(value_in, head_dim, value);
      }
    }
  });
}

void cache_qkv(const Stream& stream, const CacheQkv& args) {
  const ConstMatrix qkv = args.qkv.host();
  const Matrix qk = args.qk.host();
  const int64_t dim = args.kv.head_dim, q = args.num_heads * dim;
  const int64_t k = q + args.kv.num_kv_heads * dim;
  TR_CHECK(qk.rows == qkv.rows && qk.cols == k && qkv.cols == k + args.kv.num_kv_heads * dim,
           "qkv [{}, {}], qk [{}, {}], {} and {} heads of {}", qkv.rows, qkv.cols, qk.rows, qk.cols,
           args.num_heads, args.kv.num_kv_heads, dim);
  if (!args.q_norm.empty()) {
    cpu::rms_norm(stream, {.x = qkv.slice_cols(0, q),
                           .weight = args.q_norm,
                           .eps = args.eps,
                           .y = qk.slice_cols(0, q)});
    cpu::rms_norm(stream, {.x = qkv.slice_cols(q, k),
                           .weight = args.k_norm,
                           .eps = args.eps,
                           .y = qk.slice_cols(q, k)});
  } else {
    TR_CHECK(qk.data == qkv.data, "without norms they are turned where they are");
  }
  cpu::rope(stream, {.x = qk,
                     .num_heads = args.num_heads + args.kv.num_kv_heads,
                     .positions = args.batch.positions,
                     .table = args.table.host()});
  cpu::kv_write(stream, {.k = qk.slice_cols(q, k),
                         .v = qkv.slice_cols(k, qkv.cols),
                         .batch = args.batch,
                         .kv = args.kv});
}

void kv_copy(const Stream& /*stream*/, const KvCopy& args) {
  const auto [kv, from, to, tokens] = args;
  TR_CHECK(from >= 0 && to >= 0 && from != to && tokens >= 0 && tokens <= kv.block_tokens,
           "{} tokens of a block of {}, from {} to {}", tokens, kv.block_tokens, from, to);
  const int64_t head_floats = int64_t{kv.head_dim} * kv.block_tokens;
  const int64_t block_floats = head_floats * kv.num_kv_heads;
  const float* keys = kv.host_keys() + from * block_floats;
  float* new_keys = kv.host_keys() + to * block_floats;
  for (int64_t row = 0; row < int64_t{kv.num_kv_heads} * kv.head_dim; ++row)  // positions innermost
    std::copy_n(keys + row * kv.block_tokens, tokens, new_keys + row * kv.block_tokens);
  // A head at a time: the first positions of every head lie apart.
  const float* values = kv.host_values() + from * block_floats;
  float* new_values = kv.host_values() + to * block_floats;
  for (int64_t head = 0; head < kv.num_kv_heads; ++head)
    std::copy_n(values + head * head_floats, int64_t{tokens} * kv.head_dim,
                new_values + head * head_floats);
}

void attention(const Stream& stream, Workspace& workspace, const Attention& args) {
  const ConstMatrix q = args.q.host();
  const Matrix out = args.out.host();
  const Matrix lse = args.lse.data == nullptr ? Matrix() : args.lse.host();
  const AttentionHeads& heads = args.heads;
  const AttentionBatch& batch = args.batch;
  const KvLayer& kv = args.kv;
  const int max_context = args.max_context;
  check_batch(batch, q.rows, q.cols, heads.num_heads, kv, max_context);
  TR_CHECK(out.rows == q.rows && out.cols == q.cols);
  TR_CHECK(lse.data == nullptr || (lse.rows == q.rows && lse.cols == heads.num_heads));
  if (q.rows == 0) return;
  const int group = heads.num_heads / kv.num_kv_heads;
  const int64_t tokens = batch.num_tokens();

  // A row costs its context and a little: rows are divided by cost.
  auto row_cost = [&](int64_t row) {
    const int64_t position = batch.positions[static_cast<size_t>(row)];
    return static_cast<double>(position - heads.first_seen(position)) + 16.0;
  };
  double head_cost = 0;
  for (int64_t row = 0; row < tokens; ++row) head_cost += row_cost(row);
  const double work = head_cost * static_cast<double>(kForwardProducts * q.cols);
  const int64_t parts = num_parts(stream, static_cast<int64_t>(work));

  Workspace::Scope scope(workspace);
  const int64_t scratch_floats = Scratch::num_floats(kv.head_dim, max_context);
  auto memory = workspace.take<float>(scratch_floats * parts);
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      Scratch scratch(memory.data() + part * scratch_floats, kv.head_dim, max_context);
      WorkPulse pulse;
      // Consecutive rows of one sequence and one KV head, collected until one does not follow.
      Sequence seq{.batch = batch, .kv = kv};
      int64_t row_begin = 0, row_end = 0;
      auto flush = [&] {
        for (int64_t first = 0; first < (row_end - row_begin) * group; first += kQueries) {
          QueryBlock block(seq, heads, row_begin, row_end, group, first);
          kForwardBlocks[block.count - 1](seq, block, q, heads.scale, scratch.queries,
                                          scratch.scores, padded(max_context), out, lse);
          pulse.add(kForwardProducts * block.count * (block.context() - block.origin()) *
                    kv.head_dim);
        }
      };
      // Sequence by sequence, in each one KV head after the other: the blocks of a sequence hold
      // all heads, so that they come near together. `at` is the sequence of an item; items ascend.
      int64_t at = 0;
      auto place = [&](int64_t item) {
        auto begin_of = [&](int64_t i) { return batch.seq_offsets[static_cast<size_t>(i)]; };
        while (item >= int64_t{begin_of(at + 1)} * kv.num_kv_heads) ++at;
        const int64_t first = begin_of(at), rows = begin_of(at + 1) - first;
        const int64_t within = item - first * kv.num_kv_heads;
        return std::pair(first + within % rows, static_cast<int>(within / rows));
      };
      for_share(
          tokens * kv.num_kv_heads, head_cost * kv.num_kv_heads, part, parts,
          [&](int64_t item) { return row_cost(place(item).first); },
          [&](int64_t item) {
            const auto [row, kv_head] = place(item);
            // A cut between threads may fall inside a sequence; that changes how queries are
            // grouped, and the sums of a query do not depend on its neighbours.
            const bool follows = row == row_end && kv_head == seq.kv_head && at == seq.index;
            if (!follows) {
              flush();
              seq.index = at;
              seq.kv_head = kv_head;
              row_begin = row;
            }
            row_end = row + 1;
          });
      flush();
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
