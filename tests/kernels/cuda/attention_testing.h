// Attention over sequences whose keys and values lie in pages: what its tests on a GPU share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace::cuda_testing {

template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return to_bf16(x);
  if constexpr (!std::is_same_v<T, Bf16>) return x;
}

struct Heads {
  int heads = 0, kv_heads = 0, dim = 0, window = 0;
};
// Rows first..first + count - 1 of a sequence. Members of a group (from 0 on) have the same blocks
// where these lie in the first `prefix` positions of both, but for block `own_block`.
struct Rows {
  int sequence = 0, first = 0, count = 1;
  int group = -1, prefix = 0, own_block = -1;
};
struct Result {
  std::vector<float> out, lse;  // of the rows, in order
};

// Queries, keys and values of some sequences, rounded to T.
template <class T>
struct Sequences {
  Heads heads;
  std::vector<std::vector<float>> q, k, v;  // [positions, heads * dim]

  Sequences(Heads h, const std::vector<int>& lengths, unsigned seed = 1) : heads(h) {
    std::mt19937 rng(seed);
    for (int length : lengths) {
      q.push_back(values(length * h.heads * h.dim, rng));
      k.push_back(values(length * h.kv_heads * h.dim, rng));
      v.push_back(values(length * h.kv_heads * h.dim, rng));
    }
  }
  static std::vector<float> values(int64_t n, std::mt19937& rng) {
    auto x = random_floats(n, rng);
    for (float& f : x) f = to_float(rounded<T>(f));
    return x;
  }
  AttentionHeads attention_heads() const {
    return {.num_heads = heads.heads,
            .scale = 1.3f / std::sqrt(static_cast<float>(heads.dim)),
            .window = heads.window};
  }
};

// A batch with its pages, which lie in an order of their own.
struct Pages {
  std::vector<int32_t> positions, seq_offsets = {0}, tables;
  int max_blocks = 0, num_blocks = 0, max_context = 0;

  Pages(const std::vector<Rows>& batch, const AttentionHeads& heads, int block_tokens,
        unsigned seed) {
    for (const Rows& rows : batch) {
      for (int i = 0; i < rows.count; ++i) positions.push_back(rows.first + i);
      seq_offsets.push_back(static_cast<int32_t>(positions.size()));
      max_context = std::max(max_context, rows.first + rows.count);
    }
    max_blocks = (max_context + block_tokens - 1) / block_tokens + 1;
    num_blocks = static_cast<int>(batch.size()) * max_blocks + 2;
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    std::map<std::pair<int, int>, int32_t> of_group;
    for (const Rows& rows : batch) {
      for (int b = 0; b < max_blocks; ++b) {
        const bool used = rows.count > 0 && b * block_tokens < rows.first + rows.count &&
                          (b + 1) * block_tokens > heads.first_seen(rows.first);
        const bool shared =
            rows.group >= 0 && b != rows.own_block && (b + 1) * block_tokens <= rows.prefix;
        const int32_t id =
            shared ? of_group.emplace(std::pair(rows.group, b), ids.back()).first->second
                   : ids.back();
        tables.push_back(used ? id : -1);
        ids.pop_back();
      }
    }
  }
  int32_t block(size_t sequence, int b) const {
    return tables[sequence * static_cast<size_t>(max_blocks) + static_cast<size_t>(b)];
  }
};

struct Run {
  int block_tokens = 16;
  unsigned seed = 1;
  int more_context = 0;   // of max_context
  bool in_place = false;  // out is q
};

// T of keys and values, Out of the result, Q of queries.
template <class T, class Out = T, class Q = T>
Result attend(const Sequences<T>& all, const std::vector<Rows>& batch, Run how = {}) {
  const Heads& h = all.heads;
  const auto heads = all.attention_heads();
  Pages pages(batch, heads, how.block_tokens, how.seed);
  const int bt = how.block_tokens;
  const size_t elements =
      static_cast<size_t>(pages.num_blocks) * static_cast<size_t>(h.kv_heads * bt * h.dim);
  T nan;
  std::memset(static_cast<void*>(&nan), 0xFF, sizeof(T));
  std::vector<T> keys(elements, nan), values(elements, nan);
  std::vector<float> q;
  for (size_t s = 0; s < batch.size(); ++s) {
    const Rows& rows = batch[s];
    const auto id = static_cast<size_t>(rows.sequence);
    for (int p = 0; p < rows.first + rows.count; ++p) {
      const int32_t block = pages.block(s, p / bt);
      if (block < 0) continue;
      for (int g = 0; g < h.kv_heads; ++g) {
        for (int d = 0; d < h.dim; ++d) {
          const auto to = static_cast<size_t>(((block * h.kv_heads + g) * bt + p % bt) * h.dim + d);
          const auto from = static_cast<size_t>((p * h.kv_heads + g) * h.dim + d);
          keys[to] = rounded<T>(all.k[id][from]);
          values[to] = rounded<T>(all.v[id][from]);
        }
      }
    }
    const auto begin = all.q[id].begin() + rows.first * h.heads * h.dim;
    q.insert(q.end(), begin, begin + rows.count * h.heads * h.dim);
  }
  DeviceArray<T> device_keys(keys), device_values(values);
  DeviceArray<int32_t> positions(pages.positions), offsets(pages.seq_offsets), tables(pages.tables);
  const auto num_rows = static_cast<int64_t>(pages.positions.size());
  DeviceMatrix<Q> device_q(num_rows, h.heads * h.dim, q);
  DeviceMatrix<Out> device_out(num_rows, h.heads * h.dim);
  DeviceMatrix<float> lse(num_rows, h.heads);
  const int max_context = pages.max_context + how.more_context;
  DeviceArray<std::byte> scratch(
      cuda::attention_workspace_bytes(num_rows, h.heads, h.kv_heads, h.dim, max_context));
  Workspace workspace(scratch.span());
  Attention args{.q = device_q.view(),
                 .heads = heads,
                 .batch = {.positions = positions.span(),
                           .seq_offsets = offsets.span(),
                           .block_tables = tables.span(),
                           .max_blocks = pages.max_blocks},
                 .kv = {.keys = device_keys.data(),
                        .values = device_values.data(),
                        .block_tokens = bt,
                        .num_kv_heads = h.kv_heads,
                        .head_dim = h.dim,
                        .dtype = dtype_of<T>(),
                        .device = kGpu},
                 .max_context = max_context,
                 .out = how.in_place ? device_q.view() : device_out.view(),
                 .lse = lse.view()};
  cuda::attention(gpu_stream(), workspace, args);
  expect_no_findings();
  device_out.expect_canaries();
  device_q.expect_canaries();
  lse.expect_canaries();
  return {how.in_place ? device_q.get() : device_out.get(), lse.get()};
}

// The rows that are wanted, of a result over rows that begin at `first`.
inline Result rows_of(const Result& r, const Heads& h, int64_t first, int64_t count) {
  const auto part = [&](const std::vector<float>& x, int64_t cols) {
    return std::vector<float>(x.begin() + first * cols, x.begin() + (first + count) * cols);
  };
  return {part(r.out, h.heads * h.dim), part(r.lse, h.heads)};
}
inline void expect_same_bits(const Result& a, const Result& b, const char* what) {
  // Where no kernel ran everything is the same.
  EXPECT_TRUE(b.out.empty() || (b.out[0] != 0 && b.out[0] != b.out[1])) << what << ": " << b.out[0];
  ASSERT_EQ(a.out.size(), b.out.size()) << what;
  EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4), 0) << what;
  ASSERT_EQ(a.lse.size(), b.lse.size()) << what;
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * 4), 0) << what;
}

}  // namespace tailrace::cuda_testing
