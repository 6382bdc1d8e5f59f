#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

using namespace attention_tiles;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// As for a product (gemm.cc).
constexpr int64_t kGrain = 256 * 1024;  // multiply-adds that are worth a thread
// Products over the context: scores and the sum of values; scores, dout . value, dq, dk and dv.
constexpr int64_t kForwardProducts = 2, kBackwardProducts = 5;

int64_t padded(int64_t n) { return round_up(n, kLanes); }

// One sequence of a batch as one KV head sees it.
struct Sequence {
  const AttentionBatch& batch;
  const KvLayer& kv;
  int64_t index = 0;
  int kv_head = 0;
  float* all_keys = kv.host_keys();
  float* all_values = kv.host_values();

  int64_t row_begin() const { return batch.seq_offsets[static_cast<size_t>(index)]; }
  int64_t row_end() const { return batch.seq_offsets[static_cast<size_t>(index) + 1]; }
  int64_t position(int64_t row) const { return batch.positions[static_cast<size_t>(row)]; }

  // Checked for every block: an unused entry is -1, and what lies before the cache reads as
  // numbers, too.
  int64_t block(int64_t i) const {
    TR_CHECK(i < batch.max_blocks, "sequence {}: KV block {} of {}", index, i, batch.max_blocks);
    const int32_t id = batch.block_tables[static_cast<size_t>(index * batch.max_blocks + i)];
    TR_CHECK(id >= 0, "sequence {} has no KV block {}", index, i);
    return int64_t{id} * kv.num_kv_heads + kv_head;
  }
  float* keys(int64_t i) const { return all_keys + block(i) * kv.head_dim * kv.block_tokens; }
  float* values(int64_t i) const { return all_values + block(i) * kv.head_dim * kv.block_tokens; }

  // Keys of positions [16 i, 16 i + 16), of which [first_seen, context) are used. With blocks of 8
  // the second half may not exist yet, and the first not any more.
  ColumnGroup key_group(int64_t i, int64_t first_seen, int64_t context) const {
    const int64_t at = i * kLanes;
    if (kv.block_tokens >= kLanes) {
      return {.first = keys(at / kv.block_tokens) + at % kv.block_tokens};
    }
    if (at + 8 <= first_seen) return {.first = keys(2 * i + 1), .second = keys(2 * i + 1)};
    const float* first = keys(2 * i);
    return {.first = first, .second = at + 8 < context ? keys(2 * i + 1) : first};
  }
};

// Up to kQueries rows of (token, head) that share a KV head, in the order of their positions.
struct QueryBlock {
  int count = 0;
  int64_t row[kQueries];
  int64_t col[kQueries];  // first column of the head
  int64_t head[kQueries];
  int64_t position[kQueries];    // never falls
  int64_t first_seen[kQueries];  // nor does this
  int64_t context() const { return position[count - 1] + 1; }
  // Of the first group of 16 positions that one of them sees.
  int64_t origin() const { return first_seen[0] / kLanes * kLanes; }

  QueryBlock(const Sequence& seq, const AttentionHeads& args, int64_t row_begin, int64_t row_end,
             int group, int64_t first) {
    int64_t next_row = row_begin + first / group;
    int64_t in_group = first % group;
    for (; count < kQueries && next_row < row_end; ++count) {
      row[count] = next_row;
      head[count] = int64_t{seq.kv_head} * group + in_group;
      col[count] = head[count] * seq.kv.head_dim;
      position[count] = seq.position(next_row);
      first_seen[count] = args.first_seen(position[count]);
      // Heads before tokens: the heads of a group read the same keys and see the same positions, so
      // that almost all of a block's work is shared.
      if (++in_group == group) in_group = 0, ++next_row;
    }
  }

  // out[q * kQueryStride + d]
  void gather(ConstMatrix x, int64_t head_dim, float* out) const {
    for (int q = 0; q < count; ++q) {
      const float* in = x.row(row[q]) + col[q];
      for (int64_t d = 0; d < head_dim; d += kLanes) {
        simd::store(out + q * kQueryStride + d, simd::load(in + d, head_dim - d));
      }
    }
  }
};

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

// Scratch of one thread.
struct Scratch {
  float* queries = nullptr;        // [kQueries, kQueryStride]
  float* douts = nullptr;          // [kQueries, kQueryStride]
  float* scores = nullptr;         // [kQueries, context]
  float* dscores = nullptr;        // [kQueries, context]
  float* key_columns = nullptr;    // [head_dim, context]
  float* value_columns = nullptr;  // [head_dim, context]
  float* key_rows = nullptr;       // [context, head_dim]

  // Lengths are padded so that whole tiles of 16 x 16 may be written.
  static int64_t num_floats(int64_t head_dim, int64_t max_context) {
    const int64_t dim = padded(head_dim), context = padded(max_context);
    return 2 * kQueries * kQueryStride + 2 * kQueries * context + 3 * dim * context;
  }

  Scratch(float* memory, int64_t head_dim, int64_t max_context) {
    const int64_t dim = padded(head_dim), context = padded(max_context);
    auto take = [&memory](int64_t n) {
      float* start = memory;
      memory += n;
      return start;
    };
    queries = take(kQueries * kQueryStride);
    douts = take(kQueries * kQueryStride);
    scores = take(kQueries * context);
    dscores = take(kQueries * context);
    key_columns = take(dim * context);
    value_columns = take(dim * context);
    key_rows = take(dim * context);
  }
};

void check_batch(const AttentionBatch& batch, int64_t rows, int64_t cols, int num_heads,
                 const KvLayer& kv, int max_context) {
  TR_CHECK(rows == batch.num_tokens() && cols == int64_t{num_heads} * kv.head_dim,
           "q [{}, {}], {} tokens, {} heads of {}", rows, cols, batch.num_tokens(), num_heads,
           kv.head_dim);
  TR_CHECK(kv.head_dim <= kQueryStride - kLanes, "head_dim={}", kv.head_dim);
  TR_CHECK(kv.num_kv_heads > 0 && num_heads % kv.num_kv_heads == 0, "{} heads, {} kv heads",
           num_heads, kv.num_kv_heads);
  TR_CHECK(kv.block_tokens >= 8 && (kv.block_tokens & (kv.block_tokens - 1)) == 0,
           "block_tokens={}", kv.block_tokens);
  TR_CHECK(batch.block_tables.size() ==
           static_cast<size_t>(batch.num_sequences() * batch.max_blocks));
  for (int32_t p : batch.positions) {
    TR_CHECK(p >= 0 && p < max_context, "position {}, max_context {}", p, max_context);
  }
}

// The threads that this much work is worth, and the scratch that one of them needs.
int64_t num_parts(const Stream& stream, int64_t work) {
  return std::clamp<int64_t>(work / kGrain, 1, num_threads(stream));
}

// Calls visit(i) for those of `count` items whose middle falls in part `part` of `parts` equal
// parts of the total cost.
template <class Cost, class Visit>
void for_share(int64_t count, double total, int64_t part, int64_t parts, Cost&& cost,
               Visit&& visit) {
  const double begin = total * static_cast<double>(part) / static_cast<double>(parts);
  const double end = total * static_cast<double>(part + 1) / static_cast<double>(parts);
  double before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double own = cost(i);
    // By its middle every item falls in exactly one part, although each thread adds up the costs by
    // itself. The last part has no upper end: rounding may leave the last middle at `end`.
    const double middle = before + own / 2;
    before += own;
    if (middle >= begin && (middle < end || part + 1 == parts)) visit(i);
  }
}

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

namespace {

// The sequence's keys and values of one head as whole matrices, zero beyond the last position.
void gather_sequence(const Sequence& seq, int64_t n, const Scratch& scratch) {
  const int64_t head_dim = seq.kv.head_dim, bt = seq.kv.block_tokens;
  const int64_t context = padded(n), dim = padded(head_dim);
  // Whole tiles are read: what is behind the last position and behind head_dim must add exactly 0.
  std::fill_n(scratch.key_columns, dim * context, 0.0f);
  std::fill_n(scratch.key_rows, dim * context, 0.0f);
  for (int64_t j = 0; j < n; j += bt) {
    const int64_t count = std::min(bt, n - j);
    const float* keys = seq.keys(j / bt);
    const float* values = seq.values(j / bt);
    for (int64_t d = 0; d < head_dim; ++d) {
      std::copy_n(keys + d * bt, count, scratch.key_columns + d * context + j);
    }
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(values + i * head_dim, head_dim, scratch.key_rows + (j + i) * dim);
    }
  }
  // key_rows held the values for a moment.
  for (int64_t j = 0; j < context; j += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      simd::transpose16(scratch.key_rows + j * dim + d, dim,
                        scratch.value_columns + d * context + j, context);
    }
  }
  for (int64_t j = 0; j < context; j += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      simd::transpose16(scratch.key_columns + d * context + j, context,
                        scratch.key_rows + j * dim + d, dim);
    }
  }
}

// dq[q] = sum over j of dscores[q][j] * key[j]
template <int kCount, int kVectors>
void query_grads(const Scratch& scratch, int64_t stride, const QueryBlock& block, int64_t head_dim,
                 int64_t col, Matrix dq) {
  Vec16 acc[kCount][kVectors];
  for (auto& row : acc) {
    for (auto& a : row) a = simd::zero();
  }
  const int64_t origin = block.origin(), dim = padded(head_dim);
  weighted_rows<kCount, kVectors>(scratch.dscores + origin, stride,
                                  scratch.key_rows + origin * dim + col, dim,
                                  block.context() - origin, kVectors * kLanes, acc);
  for (int q = 0; q < kCount; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      simd::store(dq.row(block.row[q]) + block.col[q] + col + v * kLanes, acc[q][v],
                  head_dim - col - v * kLanes);
    }
  }
}

// rows[j] += sum over q of weights[q][j] * queries[q]
void spread(const float* weights, int64_t stride, const float* queries, int num_queries,
            int64_t context, int64_t head_dim, float* rows, int64_t row_stride) {
  constexpr int kPositions = 8;
  for (int64_t col = 0; col < head_dim; col += 2 * kLanes) {
    const int64_t left = head_dim - col;
    int64_t j = 0;
    auto step = [&]<int kCount>() {
      if (left > kLanes) {
        spread_queries<kCount, 2>(weights + j, stride, queries + col, num_queries, left,
                                  rows + j * row_stride + col, row_stride);
      } else {
        spread_queries<kCount, 1>(weights + j, stride, queries + col, num_queries, left,
                                  rows + j * row_stride + col, row_stride);
      }
      j += kCount;
    };
    // Not as a padded tile at the end: the row behind the context is a later position, which this
    // block must not touch, or the next sequence, which another thread may be writing.
    while (j + kPositions <= context) step.template operator()<kPositions>();
    while (j < context) step.template operator()<1>();
  }
}

// The arguments as they lie in the memory of the CPU.
struct BackwardRows {
  ConstMatrix q, out, lse, dout;
  Matrix dq, dk, dv;
  const AttentionHeads& heads;

  explicit BackwardRows(const AttentionBackward& args)
      : q(args.q.host()),
        out(args.out.host()),
        lse(args.lse.host()),
        dout(args.dout.host()),
        dq(args.dq.host()),
        dk(args.dk.host()),
        dv(args.dv.host()),
        heads(args.heads) {}
};

// With p the probabilities and D = dout . out:  dscores = scale * p * (dout . value - D).
template <int kCount>
void backward_block(const BackwardRows& args, const Sequence& seq, const QueryBlock& block,
                    int64_t n, const Scratch& scratch) {
  const int64_t head_dim = seq.kv.head_dim;
  const int64_t stride = padded(n), context = block.context(), origin = block.origin();
  const int64_t groups = (padded(context) - origin) / kLanes;
  // Probabilities are made again from the saved log-sum-exp instead of being kept, and D stands for
  // the row sum of dP * P (Dao et al. 2022, FlashAttention). Both gathers come before anything is
  // written, because dq may be dout.
  block.gather(args.q, head_dim, scratch.queries);
  block.gather(args.dout, head_dim, scratch.douts);
  auto columns_at = [&](const float* columns) {
    return [=](int64_t i) { return ColumnGroup{.first = columns + origin + i * kLanes}; };
  };
  score_all<kCount, false>(scratch.queries, head_dim, groups, columns_at(scratch.key_columns),
                           stride, scratch.scores + origin, stride);
  score_all<kCount, false>(scratch.douts, head_dim, groups, columns_at(scratch.value_columns),
                           stride, scratch.dscores + origin, stride);
  for (int i = 0; i < kCount; ++i) {
    const float* dout = scratch.douts + i * kQueryStride;
    const float* out = args.out.row(block.row[i]) + block.col[i];
    Vec16 dot = simd::zero();
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      dot = simd::fma(simd::load(dout + d, head_dim - d), simd::load(out + d, head_dim - d), dot);
    }
    const Vec16 delta = simd::broadcast(simd::reduce_add(dot));
    const Vec16 lse = simd::broadcast(args.lse.row(block.row[i])[block.head[i]]);
    const Vec16 scale = simd::broadcast(args.heads.scale);
    float* p = scratch.scores + i * stride;
    float* ds = scratch.dscores + i * stride;
    for (int64_t j = origin; j < padded(context); j += kLanes) {
      const int64_t seen = block.position[i] + 1 - j, unseen = block.first_seen[i] - j;
      Vec16 e = simd::exp(simd::sub(simd::mul(simd::load(p + j), scale), lse));
      // Selected, not multiplied by 0: a score of a later position may be so large that its
      // exponential is inf.
      e = simd::select_first(seen, e, simd::zero());
      if (unseen > 0) e = simd::select_first(unseen, simd::zero(), e);
      Vec16 d = simd::mul(simd::mul(e, simd::sub(simd::load(ds + j), delta)), scale);
      simd::store(p + j, e);
      d = simd::select_first(seen, d, simd::zero());
      if (unseen > 0) d = simd::select_first(unseen, simd::zero(), d);
      simd::store(ds + j, d);
    }
  }
  for (int64_t col = 0; col < head_dim; col += 2 * kLanes) {
    if (head_dim - col > kLanes) {
      query_grads<kCount, 2>(scratch, stride, block, head_dim, col, args.dq);
    } else {
      query_grads<kCount, 1>(scratch, stride, block, head_dim, col, args.dq);
    }
  }
  // Blocks follow each other in the order of positions, so dk and dv are sums over queries in the
  // order of (position, head).
  const int64_t row = seq.row_begin() + origin, col = seq.kv_head * head_dim;
  spread(scratch.scores + origin, stride, scratch.douts, kCount, context - origin, head_dim,
         args.dv.row(row) + col, args.dv.stride);
  spread(scratch.dscores + origin, stride, scratch.queries, kCount, context - origin, head_dim,
         args.dk.row(row) + col, args.dk.stride);
}

using BackwardBlock = void (*)(const BackwardRows&, const Sequence&, const QueryBlock&, int64_t,
                               const Scratch&);
constexpr BackwardBlock kBackwardBlocks[kQueries] = {
    backward_block<1>, backward_block<2>, backward_block<3>, backward_block<4>,
    backward_block<5>, backward_block<6>, backward_block<7>, backward_block<8>};

}  // namespace

void attention_backward(const Stream& stream, Workspace& workspace, const AttentionBackward& args) {
  const BackwardRows rows(args);
  const auto& [q, out, lse, dout, dq, dk, dv, heads] = rows;
  const AttentionBatch& batch = args.batch;
  const KvLayer& kv = args.kv;
  const int max_context = args.max_context;
  check_batch(batch, q.rows, q.cols, heads.num_heads, kv, max_context);
  TR_CHECK(out.rows == q.rows && dout.rows == q.rows && lse.rows == q.rows && dq.rows == q.rows &&
           dk.rows == q.rows && dv.rows == q.rows);
  TR_CHECK(out.cols == q.cols && dout.cols == q.cols && dq.cols == q.cols &&
           lse.cols == heads.num_heads && dk.cols == kv.num_kv_heads * kv.head_dim &&
           dv.cols == dk.cols);
  if (q.rows == 0) return;
  const int group = heads.num_heads / kv.num_kv_heads;

  // One thread owns a sequence's KV head, because all its queries add to the same dk and dv.
  auto sequence_cost = [&](int64_t i) {
    const auto s = static_cast<size_t>(i % batch.num_sequences());
    const double n = batch.seq_offsets[s + 1] - batch.seq_offsets[s];
    // Twice the sum over its queries of what they see.
    const double w = heads.window > 0 ? std::min<double>(heads.window, n) : n;
    return w * (2 * n - w) + 16 * n;
  };
  const int64_t items = batch.num_sequences() * kv.num_kv_heads;
  double total = 0;
  for (int64_t i = 0; i < items; ++i) total += sequence_cost(i);
  // Over half of the square.
  const double work = total / 2 * kBackwardProducts * group * kv.head_dim;
  const int64_t parts = num_parts(stream, static_cast<int64_t>(work));

  Workspace::Scope scope(workspace);
  const int64_t scratch_floats = Scratch::num_floats(kv.head_dim, max_context);
  auto memory = workspace.take<float>(scratch_floats * parts);
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      Scratch scratch(memory.data() + part * scratch_floats, kv.head_dim, max_context);
      WorkPulse pulse;
      for_share(items, total, part, parts, sequence_cost, [&](int64_t item) {
        Sequence seq{.batch = batch,
                     .kv = kv,
                     .index = item % batch.num_sequences(),
                     .kv_head = static_cast<int>(item / batch.num_sequences())};
        const int64_t row_begin = seq.row_begin(), n = seq.row_end() - row_begin;
        if (n == 0) return;
        TR_CHECK(seq.position(row_begin) == 0 && seq.position(row_begin + n - 1) == n - 1,
                 "sequence {} is not whole: positions {}..{} in {} rows", seq.index,
                 seq.position(row_begin), seq.position(row_begin + n - 1), n);
        for (int64_t row = row_begin; row < row_begin + n; ++row) {
          std::fill_n(dk.row(row) + seq.kv_head * kv.head_dim, kv.head_dim, 0.0f);
          std::fill_n(dv.row(row) + seq.kv_head * kv.head_dim, kv.head_dim, 0.0f);
        }
        gather_sequence(seq, n, scratch);
        for (int64_t first = 0; first < n * group; first += kQueries) {
          QueryBlock block(seq, heads, row_begin, row_begin + n, group, first);
          kBackwardBlocks[block.count - 1](rows, seq, block, n, scratch);
          pulse.add(kBackwardProducts * block.count * (block.context() - block.origin()) *
                    kv.head_dim);
        }
      });
    }
  });
}

size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context) {
  TR_CHECK(num_threads >= 1 && num_kv_heads >= 1 && num_heads % num_kv_heads == 0,
           "{} threads, {} heads, {} kv heads", num_threads, num_heads, num_kv_heads);
  return Workspace::aligned(static_cast<size_t>(num_threads) * sizeof(float) *
                            static_cast<size_t>(Scratch::num_floats(head_dim, max_context)));
}

}  // namespace tailrace::cpu::inline TR_ISA
