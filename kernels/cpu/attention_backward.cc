// The gradient of attention, and the scratch of both passes.
#include <algorithm>
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

// Over the context: scores, dout . value, dq, dk and dv.
constexpr int64_t kBackwardProducts = 5;

// The sequence's keys and values of one head as whole matrices of floats. Behind the last position
// and behind head_dim lies whatever lay there: such scores are selected away, such columns are not
// stored.
template <class T>
void gather_sequence(const Sequence& seq, int64_t n, const Scratch& scratch) {
  const int64_t head_dim = seq.kv.head_dim, bt = seq.kv.block_tokens;
  const int64_t context = padded(n), dim = padded(head_dim);
  for (int64_t j = 0; j < n; j += bt) {
    const int64_t count = std::min(bt, n - j);
    const auto* keys = reinterpret_cast<const T*>(seq.keys(j / bt));
    const auto* values = reinterpret_cast<const T*>(seq.values(j / bt));
    for (int64_t d = 0; d < head_dim; ++d) {
      to_floats(keys + d * bt, count, scratch.key_columns + d * context + j);
    }
    for (int64_t i = 0; i < count; ++i) {
      to_floats(values + i * head_dim, head_dim, scratch.key_rows + (j + i) * dim);
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
  const float* rows = scratch.key_rows + origin * dim + col;
  weighted_rows<kCount, kVectors>(scratch.dscores + origin, stride, rows, dim,
                                  reinterpret_cast<const std::byte*>(rows), /*row_bytes=*/0,
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
  // As many positions as the sums of four, two or one vectors of each leave registers for.
  constexpr int kWide = kSumsAtOnce >= 16 ? 4 : 2;
  for (int64_t col = 0; col < head_dim;) {
    const int64_t left = head_dim - col;
    auto columns = [&]<int kVectors>() {
      constexpr int kPositions = kSumsAtOnce / kVectors;
      int64_t j = 0;
      auto step = [&]<int kCount>() {
        spread_queries<kCount, kVectors>(weights + j, stride, queries + col, num_queries, left,
                                         rows + j * row_stride + col, row_stride);
        j += kCount;
      };
      // Not as a padded tile at the end: the row behind the context is a later position, which this
      // block must not touch, or the next sequence, which another thread may be writing.
      while (j + kPositions <= context) step.template operator()<kPositions>();
      while (j < context) step.template operator()<1>();
      col += kVectors * kLanes;
    };
    if (kWide > 2 && left > 3 * kLanes) {
      columns.template operator()<kWide>();
    } else {
      left > kLanes ? columns.template operator()<2>() : columns.template operator()<1>();
    }
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

// Calls visit(row, position, count) for the rows that positions [begin, end) of the sequence are:
// its own, and before them those of the sequences that it goes on from.
template <class Visit>
void for_rows(Sequence seq, int64_t begin, int64_t end, Visit&& visit) {
  while (begin < end) {
    const int64_t own = seq.position(seq.row_begin());
    const int64_t first = std::max(begin, own);
    if (first < end) visit(seq.row_begin() + first - own, first, end - first);
    end = std::min(end, own);
    if (begin < end) seq.index = seq.parent();
  }
}

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
  const auto score = [&](const float* rows, const float* columns, float* scores) {
    const WholeColumns from{.first = columns + origin, .stride = stride};
    score_all<kCount>(rows, head_dim, groups, from, scores + origin, stride);
  };
  score(scratch.queries, scratch.key_columns, scratch.scores);
  score(scratch.douts, scratch.value_columns, scratch.dscores);
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
  const int64_t col = seq.kv_head * head_dim;
  for_rows(seq, origin, context, [&](int64_t row, int64_t first, int64_t count) {
    spread(scratch.scores + first, stride, scratch.douts, kCount, count, head_dim,
           args.dv.row(row) + col, args.dv.stride);
    spread(scratch.dscores + first, stride, scratch.queries, kCount, count, head_dim,
           args.dk.row(row) + col, args.dk.stride);
  });
}

using BackwardBlock = void (*)(const BackwardRows&, const Sequence&, const QueryBlock&, int64_t,
                               const Scratch&);
constexpr BackwardBlock kBackwardBlocks[kQueries] = {
    backward_block<1>, backward_block<2>, backward_block<3>, backward_block<4>,
    backward_block<5>, backward_block<6>, backward_block<7>, backward_block<8>};

// Every position of the sequence is a row of the batch.
void check_whole(const Sequence& seq) {
  const int64_t begin = seq.row_begin(), n = seq.row_end() - begin, first = seq.position(begin);
  const int64_t parent = seq.parent();
  TR_CHECK((first == 0 || parent >= 0) && seq.position(begin + n - 1) == first + n - 1,
           "sequence {} is not whole: positions {}..{} in {} rows", seq.index, first,
           seq.position(begin + n - 1), n);
  if (parent < 0) return;
  TR_CHECK(parent < seq.index, "sequence {} goes on from {}", seq.index, parent);
  const Sequence before{.batch = seq.batch, .kv = seq.kv, .index = parent, .kv_head = seq.kv_head};
  TR_CHECK(
      before.row_begin() < before.row_end() && first <= before.position(before.row_end() - 1) + 1,
      "sequence {} goes on at {} from {}, which ends before", seq.index, first, parent);
}

// dq, dk and dv of the rows of one sequence, and what it adds to dk and dv of those that it goes on
// from.
void backward_sequence(const BackwardRows& rows, const Sequence& seq, int group,
                       const Scratch& scratch, WorkPulse& pulse) {
  const int64_t head_dim = seq.kv.head_dim, row_begin = seq.row_begin(), row_end = seq.row_end();
  if (row_begin == row_end) return;
  check_whole(seq);
  // Before anything is added: those that go on from this one come behind it.
  for (int64_t row = row_begin; row < row_end; ++row) {
    std::fill_n(rows.dk.row(row) + seq.kv_head * head_dim, head_dim, 0.0f);
    std::fill_n(rows.dv.row(row) + seq.kv_head * head_dim, head_dim, 0.0f);
  }
  const int64_t context = seq.position(row_end - 1) + 1;
  if (seq.kv.dtype == Dtype::kF32) {
    gather_sequence<float>(seq, context, scratch);
  } else {
    gather_sequence<Bf16>(seq, context, scratch);
  }
  for (int64_t first = 0; first < (row_end - row_begin) * group; first += kQueries) {
    const QueryBlock block(seq, rows.heads, row_begin, row_end, group, first);
    const QueryBlock next(seq, rows.heads, row_begin, row_end, group, first + kQueries);
    for (const ConstMatrix& x : {rows.q, rows.dout, rows.out, ConstMatrix(rows.dq)})
      next.ask_for_rows(x, head_dim);
    kBackwardBlocks[block.count - 1](rows, seq, block, context, scratch);
    pulse.add(kBackwardProducts * block.count * (block.context() - block.origin()) * head_dim);
  }
}

// The sequence that begins anew and that this one goes on from, itself or by others.
int64_t root_of(Sequence seq) {
  while (seq.parent() >= 0) seq.index = seq.parent();
  return seq.index;
}

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

  // Twice the sum over the queries at positions 0..n-1 of what they see.
  const auto seen = [&](double n) {
    const double w = heads.window > 0 ? std::min<double>(heads.window, n) : n;
    return w * (2 * n - w);
  };
  const auto sequence_at = [&](int64_t i) {
    return Sequence{.batch = batch,
                    .kv = kv,
                    .index = i % batch.num_sequences(),
                    .kv_head = static_cast<int>(i / batch.num_sequences())};
  };
  // One thread owns a KV head of a sequence and of all that go on from it, because all their
  // queries add to the same dk and dv: an item is that of the first of them.
  TR_CHECK(batch.parents.empty() || std::ssize(batch.parents) == batch.num_sequences());
  auto sequence_cost = [&](int64_t i) {
    const Sequence first = sequence_at(i);
    if (first.parent() >= 0) return 0.0;
    double cost = 0;
    for (Sequence seq = first; seq.index < batch.num_sequences(); ++seq.index) {
      const int64_t rows_of = seq.row_end() - seq.row_begin();
      if (rows_of == 0 || root_of(seq) != first.index) continue;
      const auto begin = static_cast<double>(seq.position(seq.row_begin()));
      const double end = begin + static_cast<double>(rows_of);
      cost += seen(end) - seen(begin) + 16 * end;
      if (batch.parents.empty()) break;
    }
    return cost;
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
        const Sequence first = sequence_at(item);
        if (first.parent() >= 0) return;
        for (Sequence seq = first; seq.index < batch.num_sequences(); ++seq.index) {
          if (root_of(seq) != first.index) continue;
          backward_sequence(rows, seq, group, scratch, pulse);
          if (batch.parents.empty()) break;
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
