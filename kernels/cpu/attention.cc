#include "kernels/ops/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
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

// scores[q * score_stride + position] for [begin, end), from the group of 16 that holds `begin` to
// the one that holds the last position. The cache has no keys before `begin` where that is inside a
// group. Their values are read next.
template <int kCount>
void key_scores(const float* queries, const Sequence& seq, int64_t begin, int64_t end,
                float* scores, int64_t score_stride) {
  if (begin >= end) return;
  const auto score = [&]<class T>(const KeysOf<T>& keys) {
    score_all<kCount>(queries, seq.kv.head_dim, keys.groups(), keys,
                      scores + begin / kLanes * kLanes, score_stride);
  };
  if constexpr (kLoadsRounded) {
    if (seq.kv.dtype == Dtype::kBF16 && seq.kv.block_tokens >= kLanes)
      return score(KeysOf<Bf16>(seq, begin, end, /*room=*/nullptr));
  }
  alignas(kMemoryAlignment) float room[groups_at_once(kCount) * kMaxHeadDim * kLanes];
  score(KeysOf<float>(seq, begin, end, room));
}

// Scales the scores, -inf beyond what the query sees; returns the maximum.
float scale_scores(float* scores, int64_t first_seen, int64_t position, float scale) {
  const int64_t n = position + 1, begin = first_seen / kLanes * kLanes;
  const Vec16 factor = simd::broadcast(scale), lowest = simd::broadcast(kMinusInf);
  Vec16 max = lowest;
  for (int64_t j = begin; j < n; j += kLanes) {
    Vec16 s = simd::mul(simd::load(scores + j), factor);
    if (n - j < kLanes) s = simd::select_first(n - j, s, lowest);
    if (j < first_seen) s = simd::select_first(first_seen - j, lowest, s);
    simd::store(scores + j, s);
    max = simd::max(max, s);
  }
  return simd::reduce_max(max);
}

// Scaled scores to e^(score - max); returns their sum. The maximum is known before the first term
// is added, so no sum is rescaled half-way: a softmax in one pass would round where its chunks end.
// A lane is a position modulo 16, whatever the cut of the prefill was.
float exponentiate(float* scores, int64_t first_seen, int64_t position, float max) {
  const Vec16 shift = simd::broadcast(max);
  Vec16 sum = simd::zero();
  for (int64_t j = first_seen / kLanes * kLanes; j <= position; j += kLanes) {
    Vec16 e = simd::exp(simd::sub(simd::load(scores + j), shift));
    simd::store(scores + j, e);
    sum = simd::add(sum, e);
  }
  return simd::reduce_add(sum);
}

// Scores of the queries to the weights of their values, all to be divided by their sum; inv_sum:
// one by it, by query.
void weigh(float* scores, int64_t score_stride, const QueryBlock& block, float scale, Matrix lse,
           float* inv_sum) {
  // Step by step for all, not query by query: short contexts would wait for each of a query's
  // steps.
  float max[kQueries], sum[kQueries];
  for (int i = 0; i < block.count; ++i)
    max[i] = scale_scores(scores + i * score_stride, block.first_seen[i], block.position[i], scale);
  for (int i = 0; i < block.count; ++i)
    sum[i] =
        exponentiate(scores + i * score_stride, block.first_seen[i], block.position[i], max[i]);
  for (int i = 0; i < block.count; ++i) {
    if (lse.data != nullptr) lse.row(block.row[i])[block.head[i]] = max[i] + std::log(sum[i]);
    // The largest score is in the sum as e^0 = 1, so it is at least 1. One division a query, then a
    // product an output.
    inv_sum[i] = 1.0f / sum[i];
  }
}

// acc[q] += sum over j in [begin, end) of weights[q][j] * value[j], columns `col` and on, of a
// cache of T; `behind` is read next.
template <class T, int kCount, int kVectors>
TR_INLINE void add_values_of(const float* weights, int64_t weight_stride, const Sequence& seq,
                             int64_t begin, int64_t end, int64_t col, const NextKeys& behind,
                             Vec16 (&acc)[kCount][kVectors]) {
  const int64_t head_dim = seq.kv.head_dim, block_tokens = seq.kv.block_tokens;
  const int64_t row_bytes = head_dim * static_cast<int64_t>(sizeof(T));
  const int64_t at_once = std::min(block_tokens, kLanes);
  const auto stored = [&](int64_t j) {
    return reinterpret_cast<const T*>(seq.values(j / block_tokens)) + j % block_tokens * head_dim +
           col;
  };
  for (int64_t j = begin; j < end;) {
    const int64_t count = std::min(at_once - j % at_once, end - j);
    const T* rows = stored(j);
    const auto* next = reinterpret_cast<const std::byte*>(rows);
    if constexpr (kAsksFor<kCount>) {
      // Some 4 KiB ahead: a block of bfloat16 is read in less time than memory needs to answer.
      const int64_t then = j + static_cast<int64_t>(sizeof(float) / sizeof(T)) * at_once;
      if (then < end) {
        next = reinterpret_cast<const std::byte*>(stored(then));
      } else if (const std::byte* keys = behind.blocks[then < end + at_once ? 0 : 1]) {
        next = keys;
      }
    }
    if constexpr (std::is_same_v<T, Bf16> && !kLoadsRounded) {
      constexpr int64_t kWidth = kVectors * kLanes;
      alignas(kMemoryAlignment) float room[kLanes * kWidth];
      for (int64_t i = 0; i < count; ++i)
        to_floats(rows + i * head_dim, std::min(kWidth, head_dim - col), room + i * kWidth);
      weighted_rows<kCount, kVectors>(weights + j, weight_stride, room, kWidth, next, row_bytes,
                                      count, head_dim - col, acc);
    } else {
      weighted_rows<kCount, kVectors>(weights + j, weight_stride, rows, head_dim, next, row_bytes,
                                      count, head_dim - col, acc);
    }
    j += count;
  }
}

template <int kCount, int kVectors>
TR_INLINE void add_values(const float* weights, int64_t weight_stride, const Sequence& seq,
                          int64_t begin, int64_t end, int64_t col, const NextKeys& behind,
                          Vec16 (&acc)[kCount][kVectors]) {
  if (seq.kv.dtype == Dtype::kF32) {
    add_values_of<float>(weights, weight_stride, seq, begin, end, col, behind, acc);
  } else {
    add_values_of<Bf16>(weights, weight_stride, seq, begin, end, col, behind, acc);
  }
}

// The same for positions that some of the queries see: an element's sum has its own terms alone, so
// that no position that its query does not see ever touches it.
template <int kCount, int kVectors>
TR_INLINE void add_seen_values(const float* weights, int64_t weight_stride, const Sequence& seq,
                               const QueryBlock& block, int64_t begin, int64_t end, int64_t col,
                               Vec16 (&acc)[kCount][kVectors]) {
  const int64_t head_dim = seq.kv.head_dim, block_tokens = seq.kv.block_tokens;
  for (int64_t j = begin; j < end; ++j) {
    const std::byte* stored = seq.values(j / block_tokens);
    const int64_t at = j % block_tokens * head_dim + col;
    Vec16 row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      row[v] = seq.kv.dtype == Dtype::kF32
                   ? load_floats<float>(stored, at + v * kLanes, head_dim - col - v * kLanes)
                   : load_floats<Bf16>(stored, at + v * kLanes, head_dim - col - v * kLanes);
#pragma GCC unroll 8
    for (int q = 0; q < kCount; ++q) {
      if (j < block.first_seen[q] || j > block.position[q]) continue;
      const Vec16 w = simd::broadcast(weights[q * weight_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[q][v] = simd::fma(w, row[v], acc[q][v]);
    }
  }
}

// Calls add<kVectors>(col) for the columns [begin, end) of a head, as many vectors at a time as
// kCount sums of them fit in registers: few queries by two vectors would wait for their own last
// multiply-adds. With AVX-512 eight queries times two vectors are 16 sums; four would spill.
template <int kCount, class Add>
void for_columns(int64_t begin, int64_t end, Add&& add) {
  constexpr int kWide = kCount * 4 <= kSumsAtOnce ? 4 : 2;
  for (int64_t col = begin; col < end;) {
    const int64_t left = end - col;
    if (kWide > 2 && left > 3 * kLanes) {
      add.template operator()<kWide>(col);
      col += kWide * kLanes;
    } else if (left > kLanes) {
      add.template operator()<2>(col);
      col += 2 * kLanes;
    } else {
      add.template operator()<1>(col);
      col += kLanes;
    }
  }
}

// Values of some positions and columns.
struct ValueRange {
  const float* weights = nullptr;
  int64_t weight_stride = 0;
  int64_t begin = 0, end = 0;  // seen by all queries
  // Only some see those from some_begin to begin, and from end to some_end.
  int64_t some_begin = begin, some_end = end;
  int64_t col_begin = 0, col_end = 0;
  NextKeys behind = {};
  bool goes_on = false;            // from unfinished sums in out
  const float* inv_sum = nullptr;  // by query; null: the sums stay unfinished
};

// out[q] = (sum over the j of the range that it sees of weights[q][j] * value[j]) * inv_sum[q]
template <int kCount, int kVectors>
void sum_columns(const Sequence& seq, const QueryBlock& block, const ValueRange& range, int64_t col,
                 Matrix out) {
  const auto place = [&](int q, int v) {
    return out.row(block.row[q]) + block.col[q] + col + v * kLanes;
  };
  const auto add_seen = [&](int64_t begin, int64_t end, Vec16(&acc)[kCount][kVectors]) {
    add_seen_values<kCount, kVectors>(range.weights, range.weight_stride, seq, block, begin, end,
                                      col, acc);
  };
  const int64_t left = range.col_end - col;
  Vec16 acc[kCount][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kCount; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      acc[q][v] = range.goes_on ? simd::load(place(q, v), left - v * kLanes) : simd::zero();
  }
  add_seen(range.some_begin, range.begin, acc);
  add_values<kCount, kVectors>(range.weights, range.weight_stride, seq, range.begin, range.end, col,
                               range.behind, acc);
  add_seen(range.end, range.some_end, acc);
#pragma GCC unroll 8
  for (int q = 0; q < kCount; ++q) {
    const Vec16 factor = simd::broadcast(range.inv_sum == nullptr ? 1.0f : range.inv_sum[q]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      simd::store(place(q, v), range.inv_sum == nullptr ? acc[q][v] : simd::mul(acc[q][v], factor),
                  left - v * kLanes);
  }
}
template <int kCount>
void sum_range(const Sequence& seq, const QueryBlock& block, const ValueRange& range, Matrix out) {
  for_columns<kCount>(range.col_begin, range.col_end, [&]<int kVectors>(int64_t col) {
    sum_columns<kCount, kVectors>(seq, block, range, col, out);
  });
}

template <int kCount>
void forward_block(const Sequence& seq, const QueryBlock& block, ConstMatrix q, float scale,
                   float* queries, float* scores, int64_t score_stride, const NextKeys& behind,
                   Matrix out, Matrix lse) {
  const int64_t head_dim = seq.kv.head_dim;
  // A copy: `out` may be q, and this block overwrites its own queries and nobody else's.
  block.gather(q, head_dim, queries);
  // Up to the context of the last query. Lanes behind a query's own position hold later keys, or
  // what an earlier owner of the block left, and others lie before its window; scale_scores()
  // selects them away.
  key_scores<kCount>(queries, seq, block.first_seen[0], block.context(), scores, score_stride);
  float inv_sum[kCount];
  weigh(scores, score_stride, block, scale, lse, inv_sum);
  // All queries see what the last one's window has of the positions of the first one. The few
  // before, and the few beyond, are seen by some.
  const int64_t begin = block.first_seen[kCount - 1];
  sum_range<kCount>(seq, block,
                    {.weights = scores,
                     .weight_stride = score_stride,
                     .begin = begin,
                     .end = std::max(begin, block.position[0] + 1),
                     .some_begin = block.first_seen[0],
                     .some_end = block.context(),
                     .col_end = head_dim,
                     .behind = behind,
                     .inv_sum = inv_sum},
                    out);
}

using ForwardBlock = void (*)(const Sequence&, const QueryBlock&, ConstMatrix, float, float*,
                              float*, int64_t, const NextKeys&, Matrix, Matrix);
// A function a number of queries, because the sums live in registers and arrays of those need
// constant sizes.
constexpr ForwardBlock kForwardBlocks[kQueries] = {
    forward_block<1>, forward_block<2>, forward_block<3>, forward_block<4>,
    forward_block<5>, forward_block<6>, forward_block<7>, forward_block<8>};

template <int... kCount>
constexpr auto score_functions(std::integer_sequence<int, kCount...>) {
  return std::array{&key_scores<kCount + 1>...};
}
template <int... kCount>
constexpr auto range_functions(std::integer_sequence<int, kCount...>) {
  return std::array{&sum_range<kCount + 1>...};
}
constexpr auto kKeyScores = score_functions(std::make_integer_sequence<int, kQueries>());
constexpr auto kSumRanges = range_functions(std::make_integer_sequence<int, kQueries>());

struct Forward {
  ConstMatrix q;
  Matrix out, lse;
  float scale = 0;
};

// Queries of neighbours, a row each, whose contexts begin with the same `common` positions, whole
// groups of 16. These are read once for all; `first` has row first_row. An element's sum has its
// terms in the same order as alone, and waits in `out` between the two parts.
void forward_family(const Forward& args, Sequence first, int64_t first_row, const QueryBlock& block,
                    int64_t common, const Scratch& scratch, int64_t score_stride) {
  const int64_t head_dim = first.kv.head_dim;
  block.gather(args.q, head_dim, scratch.queries);
  const auto at = static_cast<size_t>(block.count - 1);
  kKeyScores[at](scratch.queries, first, 0, common, scratch.scores, score_stride);
  // Calls own(sequence, first query, queries) for the queries of each row.
  const auto for_each_row = [&](auto&& own) {
    Sequence seq = first;
    for (int i = 0, n = 0; i < block.count; i += n) {
      for (n = 1; i + n < block.count && block.row[i + n] == block.row[i];) ++n;
      seq.index = first.index + block.row[i] - first_row;
      own(seq, i, n);
    }
  };
  float inv_sum[kQueries];
  for_each_row([&](const Sequence& seq, int i, int n) {
    kKeyScores[static_cast<size_t>(n - 1)](scratch.queries + i * kQueryStride, seq, common,
                                           block.position[i] + 1, scratch.scores + i * score_stride,
                                           score_stride);
    weigh(scratch.scores + i * score_stride, score_stride, block.part(i, n), args.scale, args.lse,
          inv_sum + i);
  });
  kSumRanges[at](first, block,
                 {.weights = scratch.scores,
                  .weight_stride = score_stride,
                  .end = common,
                  .col_end = head_dim},
                 args.out);
  for_each_row([&](const Sequence& seq, int i, int n) {
    kSumRanges[static_cast<size_t>(n - 1)](seq, block.part(i, n),
                                           {.weights = scratch.scores + i * score_stride,
                                            .weight_stride = score_stride,
                                            .begin = common,
                                            .end = block.position[i] + 1,
                                            .col_end = head_dim,
                                            .goes_on = true,
                                            .inv_sum = inv_sum + i},
                                           args.out);
  });
}

bool is_one_row(const AttentionBatch& batch, int64_t sequence) {
  const auto i = static_cast<size_t>(sequence);
  return batch.seq_offsets[i + 1] - batch.seq_offsets[i] == 1;
}

// Behind the last of the neighbours that are attended with sequence `first`: those that have at
// least half as much in common with it as the nearest has, but for one that has twice as much in
// common with its own next. Depends on the batch alone.
int64_t family_end(const AttentionBatch& batch, int64_t first) {
  int64_t end = first + 1;
  if (batch.common_blocks.empty() || !is_one_row(batch, first)) return end;
  for (int64_t common = 0; end < batch.num_sequences() && is_one_row(batch, end); ++end) {
    const int64_t own = batch.common_blocks[static_cast<size_t>(end)];
    if (own == 0 || 2 * own <= common) break;
    if (common > 0 && own >= 2 * common) return end - 1;
    common = common == 0 ? own : std::min(common, own);
  }
  return end;
}

// Positions that the rows of sequences [begin, end), a row each, have in common.
int64_t common_positions(const Sequence& seq, int64_t begin, int64_t end) {
  const AttentionBatch& batch = seq.batch;
  int64_t blocks = batch.max_blocks, seen = seq.position(batch.seq_offsets[begin]) + 1;
  for (int64_t i = begin + 1; i < end; ++i) {
    blocks = std::min<int64_t>(blocks, batch.common_blocks[static_cast<size_t>(i)]);
    seen = std::min(seen, seq.position(batch.seq_offsets[static_cast<size_t>(i)]) + 1);
  }
  return std::min(blocks * seq.kv.block_tokens, seen) / kLanes * kLanes;
}

// A row for each sequence, of so few KV heads in all that some threads would have more of them than
// others, or none: contexts are divided for the scores, queries for the softmax, columns for the
// values. No sum is cut.
class DividedRows {
 public:
  // Scores are made of so many positions at a time.
  static constexpr int64_t kStretch = 256;
  static constexpr int64_t kColumns = 2 * kLanes;

  DividedRows(const Forward& forward, const AttentionHeads& heads, const AttentionBatch& batch,
              const KvLayer& kv, int64_t max_context)
      : forward_(forward),
        heads_(heads),
        batch_(batch),
        kv_(kv),
        group_(heads.num_heads / kv.num_kv_heads),
        blocks_of_head_((group_ + kQueries - 1) / kQueries),
        num_blocks_(batch.num_sequences() * kv.num_kv_heads * blocks_of_head_),
        stride_(padded(max_context)),
        max_context_(max_context) {}

  // Divided by heads the threads would take more than a quarter longer than evenly.
  static bool pays(const AttentionBatch& batch, const KvLayer& kv, int64_t threads) {
    const int64_t heads = batch.num_sequences() * kv.num_kv_heads;
    return batch.num_tokens() == batch.num_sequences() && 4 * round_up(heads, threads) > 5 * heads;
  }
  int64_t num_floats() const { return num_blocks_ * rows() * (stride_ + 1); }

  void run(const Stream& stream, std::span<float> memory) const {
    float* scores = memory.data();
    float* inv_sums = scores + num_blocks_ * rows() * stride_;
    // The blocks of the same stretch, or columns, side by side: a long context among short ones is
    // divided too.
    const auto for_items = [&](int64_t each, auto&& item) {
      parallel_for(stream, num_blocks_ * each, 1, [&](int64_t begin, int64_t end) {
        WorkPulse pulse;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t block = i % num_blocks_;
          const Sequence seq{
              .batch = batch_,
              .kv = kv_,
              .index = block / (kv_.num_kv_heads * blocks_of_head_),
              .kv_head = static_cast<int>(block / blocks_of_head_ % kv_.num_kv_heads)};
          const QueryBlock queries(seq, heads_, seq.index, seq.index + 1, group_,
                                   block % blocks_of_head_ * kQueries);
          pulse.add(item(seq, queries, block * rows(), i / num_blocks_));
        }
      });
    };
    for_items((max_context_ + kStretch - 1) / kStretch,
              [&](const Sequence& seq, const QueryBlock& block, int64_t row, int64_t stretch) {
                const int64_t begin = std::max(block.first_seen[0], stretch * kStretch);
                const int64_t end = std::min(block.context(), (stretch + 1) * kStretch);
                if (begin >= end) return int64_t{0};
                alignas(kMemoryAlignment) float queries[kQueries * kQueryStride];
                block.gather(forward_.q, kv_.head_dim, queries);
                kKeyScores[static_cast<size_t>(block.count - 1)](queries, seq, begin, end,
                                                                 scores + row * stride_, stride_);
                return block.count * (end - begin) * kv_.head_dim;
              });
    for_items(1, [&](const Sequence&, const QueryBlock& block, int64_t row, int64_t) {
      weigh(scores + row * stride_, stride_, block, forward_.scale, forward_.lse, inv_sums + row);
      return block.count * block.context();
    });
    for_items((kv_.head_dim + kColumns - 1) / kColumns,
              [&](const Sequence& seq, const QueryBlock& block, int64_t row, int64_t part) {
                const int64_t first = part * kColumns;
                kSumRanges[static_cast<size_t>(block.count - 1)](
                    seq, block,
                    {.weights = scores + row * stride_,
                     .weight_stride = stride_,
                     .begin = block.first_seen[0],
                     .end = block.context(),
                     .col_begin = first,
                     .col_end = std::min<int64_t>(first + kColumns, kv_.head_dim),
                     .inv_sum = inv_sums + row},
                    forward_.out);
                return block.count * block.context() * kColumns;
              });
  }

 private:
  int64_t rows() const { return std::min<int64_t>(group_, kQueries); }

  const Forward& forward_;
  const AttentionHeads& heads_;
  const AttentionBatch& batch_;
  const KvLayer& kv_;
  int group_;
  int64_t blocks_of_head_, num_blocks_, stride_, max_context_;
};

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
        const Sequence seq{.batch = batch, .kv = kv, .index = index, .kv_head = h};
        std::byte* keys = seq.keys(position / block_tokens) + at * seq.element;
        std::byte* value = seq.values(position / block_tokens) + at * head_dim * seq.element;
        const float* key_in = k.row(row) + h * head_dim;
        const float* value_in = v.row(row) + h * head_dim;
        // Transposed once when it is written, since it is read as columns by every later query.
        if (kv.dtype == Dtype::kF32) {
          auto* columns = reinterpret_cast<float*>(keys);
          for (int64_t d = 0; d < head_dim; ++d) columns[d * block_tokens] = key_in[d];
          std::copy_n(value_in, head_dim, reinterpret_cast<float*>(value));
        } else {
          auto* columns = reinterpret_cast<Bf16*>(keys);
          for (int64_t d = 0; d < head_dim; ++d) columns[d * block_tokens] = to_bf16(key_in[d]);
          std::transform(value_in, value_in + head_dim, reinterpret_cast<Bf16*>(value), to_bf16);
        }
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
  const int64_t element = size_of(kv.dtype), column = kv.block_tokens * element;
  const int64_t head_bytes = kv.head_dim * column, block_bytes = head_bytes * kv.num_kv_heads;
  const auto copy = [&](void* part, int64_t runs, int64_t each, int64_t bytes) {
    const auto* source = static_cast<const std::byte*>(part) + from * block_bytes;
    auto* target = static_cast<std::byte*>(part) + to * block_bytes;
    for (int64_t i = 0; i < runs; ++i) std::copy_n(source + i * each, bytes, target + i * each);
  };
  // Positions lie innermost in keys. The first positions of a head lie together in values.
  copy(kv.keys, int64_t{kv.num_kv_heads} * kv.head_dim, column, tokens * element);
  copy(kv.values, kv.num_kv_heads, head_bytes, int64_t{tokens} * kv.head_dim * element);
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

  const Forward forward{.q = q, .out = out, .lse = lse, .scale = heads.scale};
  // A window ends what is common somewhere else for each row.
  const bool has_window = heads.first_seen(max_context) > 0;
  const auto family_of = [&](int64_t i) { return has_window ? i + 1 : family_end(batch, i); };

  Workspace::Scope scope(workspace);
  const int64_t scratch_floats = Scratch::num_floats(kv.head_dim, max_context);
  auto memory = workspace.take<float>(scratch_floats * parts);
  const DividedRows divided(forward, heads, batch, kv, max_context);
  if (parts > 1 && DividedRows::pays(batch, kv, parts) &&
      divided.num_floats() <= std::ssize(memory)) {
    divided.run(stream, memory);
    return;
  }
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      Scratch scratch(memory.data() + part * scratch_floats, kv.head_dim, max_context);
      WorkPulse pulse;
      // Consecutive rows of one family and one KV head, collected until one does not follow.
      Sequence seq{.batch = batch, .kv = kv};
      int64_t row_begin = 0, row_end = 0;
      // `behind`: the keys that the next ones begin with.
      auto flush = [&](const NextKeys& behind) {
        const int64_t rows = row_end - row_begin;
        const bool together = rows > 1 && is_one_row(batch, seq.index);
        const int64_t common =
            together ? common_positions(seq, seq.index, seq.index + rows) : int64_t{0};
        for (int64_t first = 0; first < rows * group; first += kQueries) {
          QueryBlock block(seq, heads, row_begin, row_end, group, first);
          const QueryBlock next(seq, heads, row_begin, row_end, group, first + kQueries);
          for (const ConstMatrix& x : {q, ConstMatrix(out)}) next.ask_for_rows(x, kv.head_dim);
          if (together) {
            forward_family(forward, seq, row_begin, block, common, scratch, padded(max_context));
          } else {
            kForwardBlocks[block.count - 1](seq, block, q, heads.scale, scratch.queries,
                                            scratch.scores, padded(max_context), behind, out, lse);
          }
          pulse.add(kForwardProducts * block.count * (block.context() - block.origin()) *
                    kv.head_dim);
        }
      };
      // Family by family, in each one KV head after the other: the blocks of a sequence hold all
      // heads, so that they come near together. [family, next) are the sequences of an item's;
      // items ascend.
      int64_t family = 0, next = family_of(0);
      auto begin_of = [&](int64_t i) { return batch.seq_offsets[static_cast<size_t>(i)]; };
      auto place = [&](int64_t item) {
        while (item >= int64_t{begin_of(next)} * kv.num_kv_heads)
          family = next, next = family_of(next);
        const int64_t first = begin_of(family), rows = begin_of(next) - first;
        const int64_t within = item - first * kv.num_kv_heads;
        return std::pair(first + within % rows, static_cast<int>(within / rows));
      };
      int64_t last_family = -1;
      for_share(
          tokens * kv.num_kv_heads, head_cost * kv.num_kv_heads, part, parts,
          [&](int64_t item) { return row_cost(place(item).first); },
          [&](int64_t item) {
            const auto [row, kv_head] = place(item);
            // A cut between threads may fall inside a sequence; that changes how queries are
            // grouped, and the sums of a query do not depend on its neighbours.
            const bool follows = row == row_end && kv_head == seq.kv_head && family == last_family;
            if (!follows) {
              Sequence here{.batch = batch, .kv = kv, .kv_head = kv_head};
              // A family of several sequences has a row of each.
              here.index = next - family > 1 ? family + row - begin_of(family) : family;
              const int64_t at = here.position(row);
              flush({here, heads.first_seen(at), at + 1});
              last_family = family;
              seq.index = here.index;
              seq.kv_head = kv_head;
              row_begin = row;
            }
            row_end = row + 1;
          });
      flush({});
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
