// Paged caches, batches and cases for the tests of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/ops/attention.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace::op_testing {

struct Geometry {
  int heads = 4, kv_heads = 2, head_dim = 32, block_tokens = 16, window = 0;
  Dtype cache = Dtype::kF32;
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  AttentionHeads args() const { return {.num_heads = heads, .scale = scale(), .window = window}; }
};

// A paged cache for some sequences: block ids are shuffled, all memory is NaN until written.
class PagedCache {
 public:
  PagedCache(const Geometry& g, const std::vector<int>& lengths, Rng& rng) : geometry_(g) {
    int blocks = 0;
    for (int n : lengths) max_blocks_ = std::max(max_blocks_, num_blocks(n));
    for (int n : lengths) blocks += num_blocks(n);
    // Three more than are used, so that ids have gaps.
    std::vector<int32_t> ids(static_cast<size_t>(blocks) + 3);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    for (int n : lengths) {
      std::vector<int32_t> table(static_cast<size_t>(max_blocks_), -1);
      for (int b = 0; b < num_blocks(n); ++b) {
        table[static_cast<size_t>(b)] = ids.back();
        ids.pop_back();
      }
      tables_.push_back(table);
    }
    const auto elements =
        static_cast<size_t>((blocks + 3) * g.kv_heads * g.head_dim * g.block_tokens);
    // A position that nobody wrote shows in every output that reads it.
    if (g.cache == Dtype::kF32) {
      keys_.assign(elements, NAN);
      values_.assign(elements, NAN);
    } else {
      rounded_keys_.assign(elements, to_bf16(NAN));
      rounded_values_.assign(elements, to_bf16(NAN));
    }
  }

  KvLayer layer() {
    const bool floats = geometry_.cache == Dtype::kF32;
    return {.keys = floats ? static_cast<void*>(keys_.data()) : rounded_keys_.data(),
            .values = floats ? static_cast<void*>(values_.data()) : rounded_values_.data(),
            .block_tokens = geometry_.block_tokens,
            .num_kv_heads = geometry_.kv_heads,
            .head_dim = geometry_.head_dim,
            .dtype = geometry_.cache};
  }
  const std::vector<int32_t>& table(size_t sequence) const { return tables_[sequence]; }
  int max_blocks() const { return max_blocks_; }
  const std::vector<float>& keys() const { return keys_; }
  const std::vector<float>& values() const { return values_; }
  const std::vector<Bf16>& rounded_keys() const { return rounded_keys_; }
  const std::vector<Bf16>& rounded_values() const { return rounded_values_; }
  // Of a cache of floats: blocks wholly before this position are taken away, and the positions
  // before it in its own.
  void forget_before(size_t sequence, int position) {
    const int whole = position / geometry_.block_tokens;
    for (int b = 0; b < whole; ++b) tables_[sequence][static_cast<size_t>(b)] = -1;
    const int64_t dim = geometry_.head_dim, bt = geometry_.block_tokens;
    const int64_t block = tables_[sequence][static_cast<size_t>(whole)];
    for (int64_t h = block * geometry_.kv_heads; h < (block + 1) * geometry_.kv_heads; ++h) {
      for (int64_t at = 0; at < position % bt; ++at) {
        for (int64_t d = 0; d < dim; ++d) {
          keys_[static_cast<size_t>((h * dim + d) * bt + at)] = NAN;
          values_[static_cast<size_t>((h * bt + at) * dim + d)] = NAN;
        }
      }
    }
  }
  bool same_as(const PagedCache& other) const {
    return std::memcmp(keys_.data(), other.keys_.data(), keys_.size() * sizeof(float)) == 0 &&
           std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(float)) == 0;
  }

 private:
  int num_blocks(int tokens) const {
    return (tokens + geometry_.block_tokens - 1) / geometry_.block_tokens;
  }
  Geometry geometry_;
  int max_blocks_ = 1;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<float> keys_, values_;  // of a cache of floats
  std::vector<Bf16> rounded_keys_, rounded_values_;
};

// Rows [begin, end) of a sequence as part of a batch.
struct Piece {
  size_t sequence;
  int begin, end;
};

struct BatchData {
  std::vector<int32_t> positions, offsets{0}, tables;
  int max_blocks;
  int max_context = 1;

  BatchData(const PagedCache& cache, const std::vector<Piece>& pieces)
      : max_blocks(cache.max_blocks()) {
    for (const Piece& piece : pieces) {
      for (int p = piece.begin; p < piece.end; ++p) positions.push_back(p);
      offsets.push_back(static_cast<int32_t>(positions.size()));
      const auto& table = cache.table(piece.sequence);
      tables.insert(tables.end(), table.begin(), table.end());
      max_context = std::max(max_context, piece.end);
    }
  }
  AttentionBatch get() const {
    return {.positions = positions,
            .seq_offsets = offsets,
            .block_tables = tables,
            .max_blocks = max_blocks};
  }
};

// Queries, keys, values of whole sequences, and what attention makes of them.
struct Case {
  Geometry geometry;
  std::vector<int> lengths;
  std::vector<GuardedMatrix> q, k, v;  // a sequence each

  Case(const Geometry& g, std::vector<int> n, Rng& rng) : geometry(g), lengths(std::move(n)) {
    for (int length : lengths) {
      q.emplace_back(length, g.heads * g.head_dim, rng);
      k.emplace_back(length, g.kv_heads * g.head_dim, rng);
      v.emplace_back(length, g.kv_heads * g.head_dim, rng);
    }
  }

  static GuardedMatrix rows_of(const std::vector<GuardedMatrix>& from,
                               const std::vector<Piece>& pieces) {
    int64_t rows = 0, at = 0;
    for (const Piece& p : pieces) rows += p.end - p.begin;
    GuardedMatrix result(rows, from.empty() ? 0 : from[0].cols());
    for (const Piece& p : pieces) {
      for (int r = p.begin; r < p.end; ++r, ++at) {
        std::copy_n(from[p.sequence].view().row(r), result.cols(), result.view().row(at));
      }
    }
    return result;
  }
  std::vector<Piece> whole() const {
    std::vector<Piece> pieces;
    for (size_t s = 0; s < lengths.size(); ++s) pieces.push_back({s, 0, lengths[s]});
    return pieces;
  }
};

struct Output {
  GuardedMatrix out, lse;
};

inline Output forward(const Stream& stream, const Case& c, PagedCache& cache,
                      const std::vector<Piece>& pieces) {
  const Geometry& g = c.geometry;
  GuardedMatrix q = Case::rows_of(c.q, pieces), k = Case::rows_of(c.k, pieces),
                v = Case::rows_of(c.v, pieces);
  BatchData batch(cache, pieces);
  Output result{GuardedMatrix(q.rows(), q.cols()), GuardedMatrix(q.rows(), g.heads)};
  TestWorkspace workspace(attention_workspace_bytes(num_threads(stream), g.heads, g.kv_heads,
                                                    g.head_dim, batch.max_context));
  kv_write(stream, {.k = k.view(), .v = v.view(), .batch = batch.get(), .kv = cache.layer()});
  attention(stream, workspace.get(),
            {.q = q.view(),
             .heads = g.args(),
             .batch = batch.get(),
             .kv = cache.layer(),
             .max_context = batch.max_context,
             .out = result.out.view(),
             .lse = result.lse.view()});
  result.out.expect_canaries();
  result.lse.expect_canaries();
  return result;
}

inline const std::vector<Geometry> kGeometries = {
    {},
    {.heads = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 8},
    {.heads = 8, .kv_heads = 4, .head_dim = 8, .block_tokens = 16},
    {.heads = 3, .kv_heads = 1, .head_dim = 16, .block_tokens = 8},
    {.heads = 5, .kv_heads = 5, .head_dim = 48, .block_tokens = 32},
    {.heads = 6, .kv_heads = 2, .head_dim = 64, .block_tokens = 64},
    {.heads = 9, .kv_heads = 1, .head_dim = 20, .block_tokens = 128},
    {.heads = 14, .kv_heads = 2, .head_dim = 128, .block_tokens = 16},  // groups of 7
    // Windows: of the query alone, below, at and above 16 positions, of several blocks of 8, and
    // wider than any of the contexts.
    {.heads = 4, .kv_heads = 2, .head_dim = 16, .block_tokens = 16, .window = 1},
    {.heads = 3, .kv_heads = 1, .head_dim = 20, .block_tokens = 8, .window = 5},
    {.heads = 6, .kv_heads = 2, .head_dim = 32, .block_tokens = 8, .window = 16},
    {.heads = 14, .kv_heads = 2, .head_dim = 48, .block_tokens = 32, .window = 17},
    {.heads = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 8, .window = 41},
    {.heads = 4, .kv_heads = 1, .head_dim = 8, .block_tokens = 128, .window = 200},
};
// One token, an edge of 16 lanes and of 16-token blocks, and more than one block of 128.
inline const std::vector<int> kLengths = {1, 2, 15, 16, 17, 40, 131};

// A score is a sum of head_dim products; its absolute error, and that of subtracting the maximum,
// becomes the relative error of a probability. Probabilities sum to 1, so an output moves by that
// error times |v|, once more for the normaliser; sums over n positions add n roundings.
inline double output_tolerance(const Case& c, int n) {
  float q = 0, k = 0, v = 0;
  for (size_t s = 0; s < c.q.size(); ++s) {
    q = std::max(q, c.q[s].max_magnitude());
    k = std::max(k, c.k[s].max_magnitude());
    v = std::max(v, c.v[s].max_magnitude());
  }
  const double dim = c.geometry.head_dim;
  // As if all products had one sign and a third of the largest size.
  const double score = dim * c.geometry.scale() * q * k / 3;
  return ((dim + 4) * score * 2 + n + 16) * kUnit * v;
}

struct Grads {
  GuardedMatrix dq, dk, dv;
};

inline Grads backward(const Stream& stream, const Case& c, PagedCache& cache,
                      const GuardedMatrix& dout) {
  const Geometry& g = c.geometry;
  Output y = forward(stream, c, cache, c.whole());
  GuardedMatrix q = Case::rows_of(c.q, c.whole());
  BatchData batch(cache, c.whole());
  const int64_t kv_cols = g.kv_heads * g.head_dim;
  Grads grads{GuardedMatrix(q.rows(), q.cols()), GuardedMatrix(q.rows(), kv_cols),
              GuardedMatrix(q.rows(), kv_cols)};
  // They are overwritten, not added to.
  for (auto* m : {&grads.dq, &grads.dk, &grads.dv}) m->fill(NAN);
  TestWorkspace workspace(attention_workspace_bytes(num_threads(stream), g.heads, g.kv_heads,
                                                    g.head_dim, batch.max_context));
  attention_backward(stream, workspace.get(),
                     {.q = q.view(),
                      .out = y.out.view(),
                      .lse = y.lse.view(),
                      .dout = dout.view(),
                      .heads = g.args(),
                      .batch = batch.get(),
                      .kv = cache.layer(),
                      .max_context = batch.max_context,
                      .dq = grads.dq.view(),
                      .dk = grads.dk.view(),
                      .dv = grads.dv.view()});
  for (auto* m : {&grads.dq, &grads.dk, &grads.dv}) m->expect_canaries();
  return grads;
}

}  // namespace tailrace::op_testing
