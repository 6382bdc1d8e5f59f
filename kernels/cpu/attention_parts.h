// The parts that both passes of attention share: how they walk the rows of a batch, and
// the scratch of a thread. For attention.cc and attention_backward.cc alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/attention.h"

namespace tailrace::cpu::inline TR_ISA::attention_parts {

using namespace attention_tiles;

// As for a product (gemm.cc).
constexpr int64_t kGrain = 256 * 1024;  // multiply-adds that are worth a thread

inline int64_t padded(int64_t n) { return round_up(n, kLanes); }

// One sequence of a batch as one KV head sees it.
struct Sequence {
  const AttentionBatch& batch;
  const KvLayer& kv;
  int64_t index = 0;
  int kv_head = 0;
  int64_t element = size_of(kv.dtype);

  int64_t row_begin() const { return batch.seq_offsets[static_cast<size_t>(index)]; }
  int64_t row_end() const { return batch.seq_offsets[static_cast<size_t>(index) + 1]; }
  int64_t parent() const {
    return batch.parents.empty() ? -1 : batch.parents[static_cast<size_t>(index)];
  }
  int64_t position(int64_t row) const { return batch.positions[static_cast<size_t>(row)]; }

  // Checked for every block: an unused entry is -1, and what lies before the cache reads as
  // numbers, too.
  TR_INLINE int64_t block(int64_t i) const {
    const int32_t id = i < batch.max_blocks
                           ? batch.block_tables[static_cast<size_t>(index * batch.max_blocks + i)]
                           : -1;
    if (id < 0) [[unlikely]]
      no_block(i);
    return int64_t{id} * kv.num_kv_heads + kv_head;
  }
  // Never a call: around one, sums would leave their registers.
  TR_INLINE std::byte* keys(int64_t i) const { return within(kv.keys, i); }
  TR_INLINE std::byte* values(int64_t i) const { return within(kv.values, i); }

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void no_block(int64_t i) const {
    TR_CHECK(i < batch.max_blocks, "sequence {}: KV block {} of {}", index, i, batch.max_blocks);
    TR_CHECK(false, "sequence {} has no KV block {}", index, i);
    std::abort();
  }
  TR_INLINE std::byte* within(void* part, int64_t i) const {
    return static_cast<std::byte*>(part) + block(i) * kv.head_dim * kv.block_tokens * element;
  }
};

template <class T>
TR_INLINE void to_floats(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, simd::load(from + i));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

// Elements of bfloat16 become floats where they are loaded. Without AVX-512 that would be a second
// form of every loop for few machines: there they become floats in the first-level cache, a few
// groups at a time.
#if defined(__AVX512F__)
constexpr bool kLoadsRounded = true;
#else
constexpr bool kLoadsRounded = false;
#endif

// The first `count` of the elements of T from number `at` on.
template <class T>
TR_INLINE Vec16 load_floats(const std::byte* stored, int64_t at, int64_t count) {
  const T* from = reinterpret_cast<const T*>(stored) + at;
  if constexpr (kLoadsRounded || std::is_same_v<T, float>) {
    return simd::load(from, simd::first_lanes(count));
  } else {
    float room[kLanes] = {};
    to_floats(from, std::min(count, kLanes), room);
    return simd::load(room);
  }
}

// The keys of positions [begin, end) of a sequence as columns of T, from the group of 16 that holds
// `begin` on. Those of a cache of other elements, or with blocks of 8, are brought to that form on
// the way.
template <class T>
class KeysOf {
 public:
  // room: [groups that are read at once, head_dim, 16]
  KeysOf(const Sequence& seq, int64_t begin, int64_t end, float* room)
      : seq_(seq),
        first_(begin / kLanes),
        groups_(padded(end) / kLanes - first_),
        begin_(begin),
        end_(end),
        room_(room),
        as_stored_(seq.kv.dtype == dtype_of<T>() && seq.kv.block_tokens >= kLanes) {
    stride = as_stored_ ? seq.kv.block_tokens : kLanes;
  }

  int64_t groups() const { return groups_; }
  int64_t row_bytes() const { return seq_.kv.block_tokens * seq_.element; }
  // Behind the keys their values are read.
  const std::byte* stored(int64_t i) const {
    const int64_t block_tokens = seq_.kv.block_tokens;
    if (i >= groups_) {
      const int64_t at = (first_ + std::min(i - groups_, groups_ - 1)) * kLanes;
      return seq_.values(std::max(at, begin_) / block_tokens) +
             at % block_tokens * seq_.kv.head_dim * seq_.element;
    }
    const int64_t at = (first_ + i) * kLanes;
    // With blocks of 8 the first half of a group may not be there any more.
    if (block_tokens < kLanes && at + 8 <= begin_) return seq_.keys(at / 8 + 1);
    return seq_.keys(at / block_tokens) + at % block_tokens * seq_.element;
  }
  const T* columns(int64_t i, const std::byte* stored_at, int slot) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!as_stored_) {
        float* joined = room_ + slot * seq_.kv.head_dim * kLanes;
        seq_.kv.dtype == Dtype::kF32 ? join<float>(i, stored_at, joined)
                                     : join<Bf16>(i, stored_at, joined);
        return joined;
      }
    }
    return reinterpret_cast<const T*>(stored_at);
  }

  int64_t stride;

 private:
  template <class Stored>
  void join(int64_t i, const std::byte* stored_at, float* joined) const {
    const auto* first = reinterpret_cast<const Stored*>(stored_at);
    const int64_t head_dim = seq_.kv.head_dim, block_tokens = seq_.kv.block_tokens;
    if (block_tokens >= kLanes) {
      for (int64_t d = 0; d < head_dim; ++d)
        to_floats(first + d * block_tokens, kLanes, joined + d * kLanes);
      return;
    }
    // Nor may the second half be there already.
    const int64_t at = (first_ + i) * kLanes;
    const auto* second =
        at + 8 < end_ ? reinterpret_cast<const Stored*>(seq_.keys(at / 8 + 1)) : first;
    for (int64_t d = 0; d < head_dim; ++d) {
      for (int64_t lane = 0; lane < 8; ++lane) {
        joined[d * kLanes + lane] = to_float(first[d * 8 + lane]);
        joined[d * kLanes + 8 + lane] = to_float(second[d * 8 + lane]);
      }
    }
  }

  const Sequence& seq_;
  int64_t first_, groups_, begin_, end_;
  float* room_;
  bool as_stored_;
};

// The keys that a head of a sequence begins with: what is read after the head before it.
struct NextKeys {
  static constexpr int kBlocks = 2;
  std::array<const std::byte*, kBlocks> blocks = {};  // null: nothing is known

  NextKeys() = default;
  NextKeys(const Sequence& seq, int64_t begin, int64_t end) {
    const int64_t first = begin / seq.kv.block_tokens, last = (end - 1) / seq.kv.block_tokens;
    for (int i = 0; i < kBlocks; ++i)
      blocks[static_cast<size_t>(i)] = seq.keys(std::min(first + i, last));
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
  // The start of the first group of 16 positions that one of them sees.
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

  // Queries [first, first + n).
  QueryBlock part(int first, int n) const {
    QueryBlock some = *this;
    some.count = n;
    for (int64_t* all : {some.row, some.col, some.head, some.position, some.first_seen})
      std::copy_n(all + first, n, all);
    return some;
  }

  // A head has a few lines of each row of a sequence, too far apart for the processor to see that
  // they follow.
  void ask_for_rows(ConstMatrix x, int64_t head_dim) const {
    for (int q = 0; q < count; ++q) {
      const float* in = x.row(row[q]) + col[q];
      for (int64_t d = 0; d < head_dim; d += kLanes) __builtin_prefetch(in + d, 0, 2);
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

inline void check_batch(const AttentionBatch& batch, int64_t rows, int64_t cols, int num_heads,
                        const KvLayer& kv, int max_context) {
  TR_CHECK(rows == batch.num_tokens() && cols == int64_t{num_heads} * kv.head_dim,
           "q [{}, {}], {} tokens, {} heads of {}", rows, cols, batch.num_tokens(), num_heads,
           kv.head_dim);
  TR_CHECK(kv.head_dim <= kQueryStride - kLanes, "head_dim={}", kv.head_dim);
  TR_CHECK(kv.device == Device{} && (kv.dtype == Dtype::kF32 || kv.dtype == Dtype::kBF16),
           "a cache of device {}, dtype {}", kv.device.index, static_cast<int>(kv.dtype));
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
inline int64_t num_parts(const Stream& stream, int64_t work) {
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

}  // namespace tailrace::cpu::inline TR_ISA::attention_parts
