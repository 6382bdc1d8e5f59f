// Attention: the exact one has the maximum of all scores before it adds a term, sums exponentials
// in 16 lanes and values over positions in order, and a thread has whole rows of a KV head.
//
// Free: one pass over stretches of the context, whose sums are rescaled when the maximum grows,
// values in several accumulators over positions; and the context divided among threads and joined
// (flash-decoding).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/exactness.h"
#include "bench/report/program.h"
#include "kernels/base/check.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/ops/attention.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

using attention_tiles::kQueries;
using attention_tiles::kQueryStride;

constexpr int kBlockTokens = 16;
// As in kernels/cpu/attention.cc.
constexpr int64_t kGrain = 256 * 1024;
constexpr int64_t kStretch = 256;  // positions, a multiple of kBlockTokens

// Sums over a part of the context, of up to kQueries queries that share a KV head.
struct Sums {
  float max[kQueries];
  float sum[kQueries];
  float out[kQueries][kMaxHeadDim];  // not yet divided by the sum
};

struct Queries {
  int count = 0;
  int64_t row[kQueries], col[kQueries], head[kQueries], position[kQueries];
};

// A pass over positions [begin, end) of one sequence and KV head.
struct Pass {
  const KvLayer& kv;
  const int32_t* table;
  int kv_head = 0;
  float scale = 0;

  int64_t block(int64_t position) const {
    return (int64_t{table[position / kBlockTokens]} * kv.num_kv_heads + kv_head) * kv.head_dim *
           kBlockTokens;
  }
};

// The keys from position `first` on, as score_all() reads them.
struct KeyColumns {
  const Pass& pass;
  int64_t first = 0, groups = 0;
  static constexpr int64_t stride = kBlockTokens;

  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
  const std::byte* stored(int64_t i) const {
    const bool in = i < groups;
    const float* part = in ? pass.kv.host_keys() : pass.kv.host_values();
    return reinterpret_cast<const std::byte*>(
        part + pass.block(first + (in ? i : std::min(i - groups, groups - 1)) * kLanes));
  }
  const float* columns(int64_t /*i*/, const std::byte* stored_at, int /*slot*/) const {
    return reinterpret_cast<const float*>(stored_at);
  }
};

// sums.out[q] += weights[q][j] * value[begin + j], in kChains sums over j.
template <int kCount, int kVectors, int kChains>
void add_values(const Pass& pass, const float* weights, int64_t begin, int64_t end, int64_t col,
                const float* factor, Sums& sums) {
  Vec16 acc[kChains][kCount][kVectors];
  for (auto& chain : acc) {
    for (auto& row : chain) {
      for (auto& a : row) a = simd::zero();
    }
  }
  for (int64_t at = begin; at < end; at += kBlockTokens) {
    const int64_t count = std::min<int64_t>(kBlockTokens, end - at);
    const float* values = pass.kv.host_values() + pass.block(at) + col;
    const float* w = weights + (at - begin);
    int64_t j = 0;
#pragma GCC unroll 2
    for (; j + kChains <= count; j += kChains) {
      for (int n = 0; n < kChains; ++n) {
        Vec16 row[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          row[v] = simd::load(values + (j + n) * pass.kv.head_dim + v * kLanes);
        }
        for (int q = 0; q < kCount; ++q) {
          const Vec16 x = simd::broadcast(w[q * kStretch + j + n]);
          for (int v = 0; v < kVectors; ++v) acc[n][q][v] = simd::fma(x, row[v], acc[n][q][v]);
        }
      }
    }
    for (; j < count; ++j) {
      for (int q = 0; q < kCount; ++q) {
        const Vec16 x = simd::broadcast(w[q * kStretch + j]);
        for (int v = 0; v < kVectors; ++v) {
          acc[0][q][v] =
              simd::fma(x, simd::load(values + j * pass.kv.head_dim + v * kLanes), acc[0][q][v]);
        }
      }
    }
  }
  for (int q = 0; q < kCount; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      Vec16 total = acc[0][q][v];
      for (int n = 1; n < kChains; ++n) total = simd::add(total, acc[n][q][v]);
      float* out = sums.out[q] + col + v * kLanes;
      simd::store(out, simd::fma(simd::load(out), simd::broadcast(factor[q]), total));
    }
  }
}

template <int kCount>
void attend(const Pass& pass, const float* queries, const Queries& block, int64_t begin,
            int64_t end, Sums& sums) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const int64_t head_dim = pass.kv.head_dim;
  for (int q = 0; q < kCount; ++q) {
    sums.max[q] = kMinusInf, sums.sum[q] = 0;
    std::fill_n(sums.out[q], head_dim, 0.0f);
  }
  alignas(kMemoryAlignment) float scores[kCount * kStretch];
  const Vec16 scale = simd::broadcast(pass.scale), lowest = simd::broadcast(kMinusInf);
  for (int64_t first = begin; first < end; first += kStretch) {
    const int64_t last = std::min(end, first + kStretch);
    const KeyColumns keys{
        .pass = pass, .first = first, .groups = (last - first + kLanes - 1) / kLanes};
    attention_tiles::score_all<kCount>(queries, head_dim, keys.groups, keys, scores, kStretch);
    float factor[kCount];
    for (int q = 0; q < kCount; ++q) {
      float* s = scores + q * kStretch;
      const int64_t n = std::clamp<int64_t>(block.position[q] + 1 - first, 0, last - first);
      Vec16 max = lowest;
      for (int64_t j = 0; j < last - first; j += kLanes) {
        const Vec16 z = simd::select_first(n - j, simd::mul(simd::load(s + j), scale), lowest);
        simd::store(s + j, z);
        max = simd::max(max, z);
      }
      const float largest = std::max(sums.max[q], simd::reduce_max(max));
      factor[q] = largest > sums.max[q] ? simd::exp(sums.max[q] - largest) : 1.0f;
      sums.max[q] = largest;
      const Vec16 shift = simd::broadcast(largest);
      Vec16 total[2] = {simd::zero(), simd::zero()};
      for (int64_t j = 0; j < last - first; j += kLanes) {
        const Vec16 e = simd::exp(simd::sub(simd::load(s + j), shift));
        simd::store(s + j, e);
        Vec16& chain = total[j / kLanes % 2];
        chain = simd::add(chain, e);
      }
      sums.sum[q] = sums.sum[q] * factor[q] + simd::reduce_add(simd::add(total[0], total[1]));
    }
    // As wide as the exact one; and with what registers are left as many chains as hide the
    // latency.
    constexpr int kSums = attention_tiles::kSumsAtOnce;
    constexpr int kWide = kCount * 4 <= kSums ? 4 : 2;
    for (int64_t col = 0; col < head_dim;) {
      const int64_t left = head_dim - col;
      if (kWide > 2 && left > 3 * kLanes) {
        add_values<kCount, kWide, std::clamp(kSums / kWide / kCount, 1, 4)>(
            pass, scores, first, last, col, factor, sums);
        col += kWide * kLanes;
      } else if (left > kLanes) {
        add_values<kCount, 2, std::clamp(kSums / 2 / kCount, 1, 4)>(pass, scores, first, last, col,
                                                                    factor, sums);
        col += 2 * kLanes;
      } else {
        add_values<kCount, 1, std::clamp(kSums / kCount, 1, 4)>(pass, scores, first, last, col,
                                                                factor, sums);
        col += kLanes;
      }
    }
  }
}

using AttendFunction = void (*)(const Pass&, const float*, const Queries&, int64_t, int64_t, Sums&);
template <int... kCount>
constexpr auto attend_functions(std::integer_sequence<int, kCount...>) {
  return std::array<AttendFunction, sizeof...(kCount)>{&attend<kCount + 1>...};
}
constexpr auto kAttend = attend_functions(std::make_integer_sequence<int, kQueries>());

struct FreeAttention {
  ConstMatrix q;
  int num_heads = 0;
  float scale = 0;
  const AttentionBatch& batch;
  KvLayer kv;
  Matrix out, lse;

  int group() const { return num_heads / kv.num_kv_heads; }

  // Multiply-adds of the two products over the context.
  int64_t work() const {
    int64_t scores = 0;
    for (const int32_t position : batch.positions) scores += position + 1;
    return 2 * scores * q.cols;
  }

  // Queries `first` and following of one sequence and KV head, heads before tokens.
  Queries block_at(int64_t sequence, int kv_head, int64_t first) const {
    const auto s = static_cast<size_t>(sequence);
    Queries block;
    for (; block.count < kQueries; ++block.count, ++first) {
      const int64_t row = batch.seq_offsets[s] + first / group();
      if (row >= batch.seq_offsets[s + 1]) break;
      const int i = block.count;
      block.row[i] = row;
      block.head[i] = int64_t{kv_head} * group() + first % group();
      block.col[i] = block.head[i] * kv.head_dim;
      block.position[i] = batch.positions[static_cast<size_t>(row)];
    }
    return block;
  }

  void attend_to(int64_t sequence, int kv_head, const Queries& block, int64_t begin, int64_t end,
                 Sums& sums) const {
    alignas(kMemoryAlignment) float queries[kQueries * kQueryStride];
    for (int i = 0; i < block.count; ++i) {
      std::copy_n(q.row(block.row[i]) + block.col[i], kv.head_dim, queries + i * kQueryStride);
    }
    const Pass pass{.kv = kv,
                    .table = batch.block_tables.data() + sequence * batch.max_blocks,
                    .kv_head = kv_head,
                    .scale = scale};
    kAttend[static_cast<size_t>(block.count - 1)](pass, queries, block, begin, end, sums);
  }

  void finish(const Queries& block, const Sums& sums) const {
    for (int i = 0; i < block.count; ++i) {
      const Vec16 inv = simd::broadcast(1.0f / sums.sum[i]);
      float* to = out.row(block.row[i]) + block.col[i];
      for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
        simd::store(to + d, simd::mul(simd::load(sums.out[i] + d), inv));
      }
      if (lse.data != nullptr)
        lse.row(block.row[i])[block.head[i]] = sums.max[i] + std::log(sums.sum[i]);
    }
  }

  // As the exact one divides.
  void by_heads(const Stream& stream) const {
    const int64_t sequences = batch.num_sequences(), items = sequences * kv.num_kv_heads;
    const int64_t grain = std::max<int64_t>(1, kGrain * items / work());
    parallel_for(stream, items, grain, [&](int64_t begin, int64_t end) {
      Sums sums;
      for (int64_t item = begin; item < end; ++item) {
        const int64_t s = item / kv.num_kv_heads;
        const auto kv_head = static_cast<int>(item % kv.num_kv_heads);
        for (int64_t first = 0;; first += kQueries) {
          const Queries block = block_at(s, kv_head, first);
          if (block.count == 0) break;
          attend_to(s, kv_head, block, 0, block.position[block.count - 1] + 1, sums);
          finish(block, sums);
        }
      }
    });
  }

  // One query row a sequence, whose heads of one KV head are at most kQueries. `partials`: one a
  // thread, sequence and KV head.
  void by_context(const Stream& stream, std::span<Sums> partials) const {
    const int64_t sequences = batch.num_sequences();
    const int64_t parts = std::clamp<int64_t>(work() / kGrain, 1, num_threads(stream));
    const auto sums_of = [&](int64_t part, int64_t item) -> Sums& {
      return partials[static_cast<size_t>(part * sequences * kv.num_kv_heads + item)];
    };
    parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        for (int64_t item = 0; item < sequences * kv.num_kv_heads; ++item) {
          const int64_t s = item / kv.num_kv_heads;
          const auto kv_head = static_cast<int>(item % kv.num_kv_heads);
          const Queries block = block_at(s, kv_head, 0);
          const int64_t blocks = (block.position[0] + kBlockTokens) / kBlockTokens;
          const int64_t to = blocks * (part + 1) / parts * kBlockTokens;
          attend_to(s, kv_head, block, blocks * part / parts * kBlockTokens,
                    std::min(block.position[0] + 1, to), sums_of(part, item));
        }
      }
    });
    for (int64_t item = 0; item < sequences * kv.num_kv_heads; ++item) {
      const Queries block =
          block_at(item / kv.num_kv_heads, static_cast<int>(item % kv.num_kv_heads), 0);
      Sums& all = sums_of(0, item);
      for (int64_t part = 1; part < parts; ++part) add(sums_of(part, item), block.count, all);
      finish(block, all);
    }
  }

  void add(const Sums& other, int count, Sums& sums) const {
    for (int i = 0; i < count; ++i) {
      const float max = std::max(sums.max[i], other.max[i]);
      const float own = std::exp(sums.max[i] - max), its = std::exp(other.max[i] - max);
      sums.max[i] = max;
      sums.sum[i] = own * sums.sum[i] + its * other.sum[i];
      for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
        const Vec16 scaled = simd::mul(simd::load(other.out[i] + d), simd::broadcast(its));
        simd::store(sums.out[i] + d,
                    simd::fma(simd::load(sums.out[i] + d), simd::broadcast(own), scaled));
      }
    }
  }
};

// The caches of as many layers as num_copies() gives, all with the same numbers.
class Caches {
 public:
  Caches(const AttentionShape& shape, int64_t layers, std::mt19937& rng) : shape_(shape) {
    const int64_t blocks = shape.sequences * ((shape.context + kBlockTokens - 1) / kBlockTokens);
    const int64_t block_size = int64_t{kBlockTokens} * shape.kv_heads * shape.head_dim;
    // Keys and values, one behind the other.
    const RandomMatrix both(2 * blocks, block_size, rng);
    half_ = blocks * block_size;
    for (int64_t i = num_copies(layers, static_cast<int64_t>(both.memory.size())); i > 0; --i) {
      memory_.emplace_back(both.memory.size());
      std::ranges::copy(both.memory.as<float>(), memory_.back().as<float>().begin());
    }
  }
  int64_t count() const { return static_cast<int64_t>(memory_.size()); }
  KvLayer operator[](int64_t copy) {
    float* keys = memory_[static_cast<size_t>(copy)].as<float>().data();
    return {keys, keys + half_, kBlockTokens, shape_.kv_heads, shape_.head_dim};
  }

 private:
  AttentionShape shape_;
  int64_t half_ = 0;
  std::vector<Buffer> memory_;
};

}  // namespace

std::string attention_name(const AttentionShape& shape, const std::string& what) {
  return fmt::format("attention {} x {} of {}, {}/{} heads of {}{}", shape.sequences, shape.queries,
                     shape.context, shape.heads, shape.kv_heads, shape.head_dim, what);
}

void exactness_attention(ExactnessHarness& bench, const AttentionShape& shape, int64_t layers) {
  const auto [sequences, context, queries, heads, kv_heads, head_dim, window, shared, cache] =
      shape;
  TR_CHECK(window == 0, "window {}", window);
  const std::string name = attention_name(shape, ""),
                    backward = attention_name(shape, ", gradients");
  if (!bench.wants(name) && !bench.wants(backward)) return;
  TR_CHECK(head_dim % kLanes == 0 && heads / kv_heads <= kQueries, "{} heads of {}", heads,
           head_dim);
  const Stream& stream = bench.stream();
  const int64_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
  const int64_t rows = sequences * queries, q_size = heads * head_dim;

  std::mt19937 rng(2);
  RandomMatrix q(rows, q_size, rng), out(rows, q_size, rng), again(rows, q_size, rng),
      lse(rows, heads, rng), lse_again(rows, heads, rng);
  // Training reads what the pass has just written, decoding the caches of all layers in turn.
  Caches caches(shape, queries == 1 ? layers : 1, rng);
  std::vector<int32_t> positions, offsets{0}, tables;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int p = context - queries; p < context; ++p) positions.push_back(p);
    offsets.push_back(static_cast<int32_t>(positions.size()));
    for (int64_t b = 0; b < blocks; ++b) tables.push_back(static_cast<int32_t>(s * blocks + b));
  }
  const AttentionBatch batch{positions, offsets, tables, static_cast<int>(blocks)};
  Buffer scratch(
      attention_workspace_bytes(bench.num_threads(), heads, kv_heads, head_dim, context));
  Workspace workspace(scratch);
  const AttentionHeads args{.num_heads = heads,
                            .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
  const Matrix wanted_lse = queries == 1 ? Matrix() : lse.view;

  const auto exact = [&](int64_t copy) {
    attention(stream, workspace,
              {.q = q.view,
               .heads = args,
               .batch = batch,
               .kv = caches[copy],
               .max_context = context,
               .out = out.view,
               .lse = wanted_lse});
  };
  const auto free_on = [&](int64_t copy) {
    return FreeAttention{.q = q.view,
                         .num_heads = heads,
                         .scale = args.scale,
                         .batch = batch,
                         .kv = caches[copy],
                         .out = out.view,
                         .lse = wanted_lse};
  };
  std::vector<Sums> partials(static_cast<size_t>(bench.num_threads() * sequences * kv_heads));
  std::vector<Liberty> liberties = {
      {"one pass", [&](int64_t copy) { free_on(copy).by_heads(stream); }}};
  if (bench.num_threads() > 1 && queries == 1) {
    liberties.push_back({"context among threads",
                         [&](int64_t copy) { free_on(copy).by_context(stream, partials); }});
  }

  exact(0);
  for (int64_t s = 0; s < sequences; ++s) {
    // A few rows of each sequence alone, on one thread.
    for (int64_t i = 0; i < queries; i += std::max(1, queries / 3)) {
      const int64_t row = s * queries + i;
      const std::vector<int32_t> one{positions[static_cast<size_t>(row)]}, ends{0, 1};
      const AttentionBatch alone{
          one, ends,
          std::span(tables).subspan(static_cast<size_t>(s * blocks), static_cast<size_t>(blocks)),
          static_cast<int>(blocks)};
      attention(Stream{}, workspace,
                {.q = q.view.slice_rows(row, row + 1),
                 .heads = args,
                 .batch = alone,
                 .kv = caches[0],
                 .max_context = context,
                 .out = again.view.slice_rows(row, row + 1)});
      require_same_bits(out.view.slice_rows(row, row + 1), again.view.slice_rows(row, row + 1),
                        name + ", a row alone");
    }
  }
  // The reference sees the first sequence: it is slow.
  const AttentionBatch first{
      std::span(positions).first(static_cast<size_t>(queries)), std::span(offsets).first(2),
      std::span(tables).first(static_cast<size_t>(blocks)), static_cast<int>(blocks)};
  RandomMatrix expected(queries, q_size, rng);
  ref::attention(q.view.slice_rows(0, queries), args, first, caches[0], expected.view, {});
  require_close(out.view.slice_rows(0, queries), expected.view, context + head_dim, name);
  std::ranges::copy(out.memory.as<float>(), again.memory.as<float>().begin());
  for (const Liberty& liberty : liberties) {
    liberty.call(0);
    require_close(out.view.slice_rows(0, queries), expected.view, context + head_dim,
                  name + ", " + liberty.name);
    // The roundings of both.
    require_close(out.view, again.view, 2 * (context + head_dim), name + ", " + liberty.name);
  }
  if (bench.wants(name)) bench.measure(name, caches.count(), exact, liberties);
  if (queries == 1 || !bench.wants(backward)) return;

  // Its sums are independent of each other in plenty, and two threads have whole KV heads: no
  // liberty is known that would make it faster.
  RandomMatrix dout(rows, q_size, rng), dq(rows, q_size, rng), dk(rows, kv_heads * head_dim, rng),
      dv(rows, kv_heads * head_dim, rng), dq_again(rows, q_size, rng),
      dk_again(rows, kv_heads * head_dim, rng), dv_again(rows, kv_heads * head_dim, rng);
  const auto gradients = [&](const Stream& on, Matrix to_q, Matrix to_k, Matrix to_v) {
    attention_backward(on, workspace,
                       {.q = q.view,
                        .out = out.view,
                        .lse = lse.view,
                        .dout = dout.view,
                        .heads = args,
                        .batch = batch,
                        .kv = caches[0],
                        .max_context = context,
                        .dq = to_q,
                        .dk = to_k,
                        .dv = to_v});
  };
  exact(0);
  gradients(stream, dq.view, dk.view, dv.view);
  gradients(Stream{}, dq_again.view, dk_again.view, dv_again.view);
  require_same_bits(dq.view, dq_again.view, backward + ", dq, one thread");
  require_same_bits(dk.view, dk_again.view, backward + ", dk, one thread");
  require_same_bits(dv.view, dv_again.view, backward + ", dv, one thread");
  bench.measure_exact_only(backward,
                           [&](int64_t) { gradients(stream, dq.view, dk.view, dv.view); });
}

}  // namespace tailrace
