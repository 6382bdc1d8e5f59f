// The gradient of attention on a GPU: against kernels/ref, within what roundings may add up to, and
// against itself by bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda_testing::DeviceArray;
using cuda_testing::DeviceMatrix;
using cuda_testing::expect_no_findings;
using cuda_testing::gpu_stream;
using cuda_testing::kGpu;
using cuda_testing::random_floats;

struct BackwardShape {
  int heads = 0, kv_heads = 0, dim = 0, window = 0;

  int64_t q_cols() const { return int64_t{heads} * dim; }
  int64_t kv_cols() const { return int64_t{kv_heads} * dim; }
};

template <class T>
T as_element(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return to_bf16(x);
  if constexpr (!std::is_same_v<T, Bf16>) return x;
}

struct BackwardResult {
  std::vector<float> dq, dk, dv;
};

// Whole sequences, one behind the other, with values that T holds.
template <class T>
struct WholeSequences {
  BackwardShape shape;
  std::vector<int> lengths;
  std::vector<int32_t> positions, offsets = {0};
  std::vector<float> q, k, v, dout, out, lse;

  WholeSequences(BackwardShape s, const std::vector<int>& l) : shape(s), lengths(l) {
    for (const int length : lengths) {
      for (int p = 0; p < length; ++p) positions.push_back(p);
      offsets.push_back(static_cast<int32_t>(positions.size()));
    }
    std::mt19937 rng(7);
    q = values(rows() * shape.q_cols(), rng);
    k = values(rows() * shape.kv_cols(), rng);
    v = values(rows() * shape.kv_cols(), rng);
    dout = values(rows() * shape.q_cols(), rng);
    out.resize(q.size());
    lse.resize(static_cast<size_t>(rows() * shape.heads));
    with_reference([&](const AttentionBatch& batch, const KvLayer& kv) {
      ref::attention(ConstMatrix(q.data(), rows(), shape.q_cols()), attention_heads(), batch, kv,
                     Matrix(out.data(), rows(), shape.q_cols()),
                     Matrix(lse.data(), rows(), shape.heads));
    });
  }
  static std::vector<float> values(int64_t count, std::mt19937& rng) {
    std::vector<float> x = random_floats(count, rng);
    for (float& f : x) f = to_float(as_element<T>(f));
    return x;
  }

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  int longest() const { return lengths.empty() ? 0 : *std::ranges::max_element(lengths); }
  AttentionHeads attention_heads() const {
    return {.num_heads = shape.heads,
            .scale = 1.3f / std::sqrt(static_cast<float>(shape.dim)),
            .window = shape.window};
  }
  // [sequences, max_blocks] in an order of their own, of max_blocks * sequences + 1 blocks.
  std::vector<int32_t> tables(int block_tokens, int max_blocks) const {
    std::vector<int32_t> ids(lengths.size() * static_cast<size_t>(max_blocks) + 1), table;
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(static_cast<unsigned>(block_tokens)));
    for (const int length : lengths) {
      for (int b = 0; b < max_blocks; ++b) {
        table.push_back(b * block_tokens < length ? ids.back() : -1);
        ids.pop_back();
      }
    }
    return table;
  }
  // visit(row, element of a row, block, kv head, position in the block)
  template <class Visit>
  void for_cached(const std::vector<int32_t>& table, int block_tokens, int max_blocks,
                  const Visit& visit) const {
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int p = 0; p < lengths[s]; ++p) {
        const int32_t block =
            table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(p / block_tokens)];
        for (int h = 0; h < shape.kv_heads; ++h)
          visit(static_cast<size_t>((offsets[s] + p) * shape.kv_cols() + h * shape.dim),
                int64_t{block} * shape.kv_heads + h, p % block_tokens);
      }
    }
  }
  template <class Use>
  void with_reference(const Use& use) const {
    constexpr int kBlockTokens = 16;
    const int max_blocks = longest() / kBlockTokens + 1;
    const std::vector<int32_t> table = tables(kBlockTokens, max_blocks);
    std::vector<float> keys((table.size() + 1) * static_cast<size_t>(shape.kv_cols()) *
                            kBlockTokens),
        cached_values(keys.size());
    for_cached(table, kBlockTokens, max_blocks, [&](size_t from, int64_t head, int slot) {
      for (int d = 0; d < shape.dim; ++d) {
        keys[static_cast<size_t>((head * shape.dim + d) * kBlockTokens + slot)] =
            k[from + static_cast<size_t>(d)];
        cached_values[static_cast<size_t>((head * kBlockTokens + slot) * shape.dim + d)] =
            v[from + static_cast<size_t>(d)];
      }
    });
    use({.positions = positions,
         .seq_offsets = offsets,
         .block_tables = table,
         .max_blocks = max_blocks},
        {.keys = keys.data(),
         .values = cached_values.data(),
         .block_tokens = kBlockTokens,
         .num_kv_heads = shape.kv_heads,
         .head_dim = shape.dim});
  }
};

BackwardResult zero_result(const BackwardShape& shape, int64_t rows) {
  const auto kv_size = static_cast<size_t>(rows * shape.kv_cols());
  return {std::vector<float>(static_cast<size_t>(rows * shape.q_cols())),
          std::vector<float>(kv_size), std::vector<float>(kv_size)};
}

template <class T>
BackwardResult by_device(const WholeSequences<T>& all, int block_tokens, bool in_place) {
  const BackwardShape& shape = all.shape;
  const int64_t rows = all.rows();
  const int max_blocks = all.longest() / block_tokens + 2;
  const std::vector<int32_t> table = all.tables(block_tokens, max_blocks);
  // What is no position of a sequence is NaN.
  T nan;
  std::memset(static_cast<void*>(&nan), 0xFF, sizeof(T));
  std::vector<T> keys(
      (table.size() + 1) * static_cast<size_t>(shape.kv_cols()) * static_cast<size_t>(block_tokens),
      nan);
  std::vector<T> values = keys;
  all.for_cached(table, block_tokens, max_blocks, [&](size_t from, int64_t head, int slot) {
    for (int d = 0; d < shape.dim; ++d) {
      const auto to = static_cast<size_t>((head * block_tokens + slot) * shape.dim + d);
      keys[to] = as_element<T>(all.k[from + static_cast<size_t>(d)]);
      values[to] = as_element<T>(all.v[from + static_cast<size_t>(d)]);
    }
  });
  DeviceArray<T> device_keys(keys), device_values(values);
  const DeviceArray<int32_t> positions(all.positions), offsets(all.offsets), tables(table);
  const DeviceMatrix<T> q(rows, shape.q_cols(), all.q), out(rows, shape.q_cols(), all.out);
  const DeviceMatrix<float> lse(rows, shape.heads, all.lse);
  DeviceMatrix<float> dout(rows, shape.q_cols(), all.dout), dq(rows, shape.q_cols()),
      dk(rows, shape.kv_cols()), dv(rows, shape.kv_cols());
  DeviceArray<std::byte> scratch(
      cuda::attention_workspace_bytes(rows, shape.heads, shape.kv_heads, shape.dim, all.longest()));
  Workspace workspace(scratch.span(), kGpu);
  cuda::attention_backward(gpu_stream(), workspace,
                           {.q = q.view(),
                            .out = out.view(),
                            .lse = lse.view(),
                            .dout = dout.view(),
                            .heads = all.attention_heads(),
                            .batch = {.positions = positions.span(),
                                      .seq_offsets = offsets.span(),
                                      .block_tables = tables.span(),
                                      .max_blocks = max_blocks},
                            .kv = {.keys = device_keys.data(),
                                   .values = device_values.data(),
                                   .block_tokens = block_tokens,
                                   .num_kv_heads = shape.kv_heads,
                                   .head_dim = shape.dim,
                                   .dtype = dtype_of<T>(),
                                   .device = kGpu},
                            .max_context = all.longest(),
                            .dq = in_place ? dout.view() : dq.view(),
                            .dk = dk.view(),
                            .dv = dv.view()});
  expect_no_findings();
  EXPECT_EQ(workspace.used(), 0u);
  for (const auto* m : {&dout, &dq, &dk, &dv}) m->expect_canaries();
  if (!in_place) {
    EXPECT_EQ(dout.get(), all.dout);
  }
  return {in_place ? dout.get() : dq.get(), dk.get(), dv.get()};
}

// By how much roundings may move each element, to first order in them: those of operands of
// products to bfloat16, of `out`, and of float32 sums.
template <class T>
BackwardResult tolerances(const WholeSequences<T>& all) {
  const BackwardShape& shape = all.shape;
  const auto heads = all.attention_heads();
  constexpr double kFloat = 0x1p-24, kOperand = std::is_same_v<T, Bf16> ? 0x1p-8 : 0x1p-24;
  const double sum = kFloat * (shape.dim + 8), scale = heads.scale;
  BackwardResult most = zero_result(shape, all.rows());
  for (int64_t row = 0; row < all.rows(); ++row) {
    const int position = all.positions[static_cast<size_t>(row)];
    for (int h = 0; h < shape.heads; ++h) {
      const int64_t own = row * shape.q_cols() + h * shape.dim;
      const float *q = all.q.data() + own, *dout = all.dout.data() + own;
      const double lse = all.lse[static_cast<size_t>(row * shape.heads + h)];
      double dot = 0, dot_size = 0;
      for (int d = 0; d < shape.dim; ++d) {
        const double term = double{dout[d]} * all.out[static_cast<size_t>(own + d)];
        dot += term;
        dot_size += std::abs(term);
      }
      for (int64_t p = heads.first_seen(position); p <= position; ++p) {
        const int64_t other =
            (row - position + p) * shape.kv_cols() + h / (shape.heads / shape.kv_heads) * shape.dim;
        const float *k = all.k.data() + other, *v = all.v.data() + other;
        double score = 0, score_size = 0, product = 0, product_size = 0;
        for (int d = 0; d < shape.dim; ++d) {
          score += double{q[d]} * k[d] * scale;
          score_size += std::abs(double{q[d]} * k[d]) * scale;
          product += double{dout[d]} * v[d];
          product_size += std::abs(double{dout[d]} * v[d]);
        }
        const double weight = std::exp(score - lse);
        const double of_weight = kOperand + sum * score_size + 4 * kFloat * (2 + std::abs(lse));
        // A sum of float32 adds at most its number of terms.
        const double of_sum = kFloat * (all.longest() * shape.heads + 8);
        const double gradient = std::abs(weight * (product - dot));
        const double of_gradient = gradient * (of_weight + kOperand + of_sum) +
                                   weight * (sum * (product_size + dot_size) + kOperand * dot_size);
        for (int d = 0; d < shape.dim; ++d) {
          const auto at = static_cast<size_t>(other + d);
          most.dv[at] += static_cast<float>(weight * (of_weight + of_sum) * std::abs(dout[d]));
          most.dk[at] += static_cast<float>(scale * of_gradient * std::abs(q[d]));
          most.dq[static_cast<size_t>(own + d)] +=
              static_cast<float>(scale * of_gradient * std::abs(k[d]));
        }
      }
    }
  }
  return most;
}

void expect_within(const std::vector<float>& have, const std::vector<float>& want,
                   const std::vector<float>& most, const char* what) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < have.size(); ++i)
    ASSERT_LE(std::abs(double{have[i]} - want[i]),
              double{most[i]} + 1e-6 * std::abs(want[i]) + 1e-30)
        << what << " at " << i << ": " << have[i] << ", expected " << want[i];
}
void expect_same(const BackwardResult& have, const BackwardResult& want, const char* what) {
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  EXPECT_TRUE(same(have.dq, want.dq) && same(have.dk, want.dk) && same(have.dv, want.dv)) << what;
}

template <class T>
void expect_gradient(const BackwardShape& shape, const std::vector<int>& lengths) {
  SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of "
                                  << shape.dim << ", window " << shape.window);
  const WholeSequences<T> all(shape, lengths);
  const BackwardResult have = by_device(all, /*block_tokens=*/8, /*in_place=*/false);
  BackwardResult want = zero_result(shape, all.rows());
  const int64_t rows = all.rows();
  all.with_reference([&](const AttentionBatch& batch, const KvLayer& kv) {
    ref::attention_backward(
        ConstMatrix(all.q.data(), rows, shape.q_cols()),
        ConstMatrix(all.dout.data(), rows, shape.q_cols()), all.attention_heads(), batch, kv,
        Matrix(want.dq.data(), rows, shape.q_cols()), Matrix(want.dk.data(), rows, shape.kv_cols()),
        Matrix(want.dv.data(), rows, shape.kv_cols()));
  });
  const BackwardResult most = tolerances(all);
  expect_within(have.dq, want.dq, most.dq, "dq");
  expect_within(have.dk, want.dk, most.dk, "dk");
  expect_within(have.dv, want.dv, most.dv, "dv");
  expect_same(by_device(all, /*block_tokens=*/16, /*in_place=*/true), have, "again, in place");
}

const std::vector<int> kWhole = {1, 7, 64, 0, 65, 200};

TEST(CudaAttentionBackward, Bf16Agrees) {
  expect_gradient<Bf16>({.heads = 2, .kv_heads = 2, .dim = 8}, kWhole);
  expect_gradient<Bf16>({.heads = 4, .kv_heads = 2, .dim = 64, .window = 17}, kWhole);
  expect_gradient<Bf16>({.heads = 3, .kv_heads = 1, .dim = 128}, kWhole);
  expect_gradient<Bf16>({.heads = 3, .kv_heads = 1, .dim = 24, .window = 17}, kWhole);
  expect_gradient<Bf16>({.heads = 2, .kv_heads = 1, .dim = 136, .window = 17}, {33, 70});
  expect_gradient<Bf16>({.heads = 1, .kv_heads = 1, .dim = 256}, {70, 3});
}
TEST(CudaAttentionBackward, Float32Agrees) {
  const std::vector<int> lengths = {1, 7, 64, 0, 65};
  expect_gradient<float>({.heads = 2, .kv_heads = 2, .dim = 8}, lengths);
  expect_gradient<float>({.heads = 4, .kv_heads = 2, .dim = 10, .window = 17}, lengths);
  expect_gradient<float>({.heads = 3, .kv_heads = 1, .dim = 64}, {40, 3});
  expect_gradient<float>({.heads = 1, .kv_heads = 1, .dim = 256}, {9});
}

// A sequence has the bits of a batch of its own.
template <class T>
void expect_own_bits(const BackwardShape& shape) {
  const std::vector<int> lengths = {65, 1, 100};
  WholeSequences<T> all(shape, lengths);
  const BackwardResult batch = by_device(all, /*block_tokens=*/8, /*in_place=*/false);
  WholeSequences<T> last(shape, {lengths.back()});
  const auto tail = [](const std::vector<float>& of, size_t size) {
    return std::vector<float>(of.end() - static_cast<std::ptrdiff_t>(size), of.end());
  };
  for (const auto member :
       {&WholeSequences<T>::q, &WholeSequences<T>::k, &WholeSequences<T>::v,
        &WholeSequences<T>::dout, &WholeSequences<T>::out, &WholeSequences<T>::lse})
    last.*member = tail(all.*member, (last.*member).size());
  const BackwardResult alone = by_device(last, /*block_tokens=*/16, /*in_place=*/false);
  expect_same({tail(batch.dq, alone.dq.size()), tail(batch.dk, alone.dk.size()),
               tail(batch.dv, alone.dv.size())},
              alone, "a sequence alone");
}
TEST(CudaAttentionBackward, BitsAreASequencesOwn) {
  expect_own_bits<Bf16>({.heads = 3, .kv_heads = 1, .dim = 32});
  expect_own_bits<float>({.heads = 2, .kv_heads = 1, .dim = 10, .window = 17});
}
TEST(CudaAttentionBackward, NoRows) {
  for (const std::vector<int>& lengths : {std::vector<int>{}, std::vector<int>{0}}) {
    by_device(WholeSequences<Bf16>({.heads = 2, .kv_heads = 1, .dim = 16}, lengths), 8, false);
    by_device(WholeSequences<float>({.heads = 2, .kv_heads = 1, .dim = 6}, lengths), 8, true);
  }
}

}  // namespace
}  // namespace tailrace
