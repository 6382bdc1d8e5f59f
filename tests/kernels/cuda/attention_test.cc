// Attention, cache_qkv and kv_copy on a GPU: against plain loops, and against themselves by bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda_testing::attend;
using cuda_testing::DeviceArray;
using cuda_testing::DeviceMatrix;
using cuda_testing::expect_no_findings;
using cuda_testing::expect_same_bits;
using cuda_testing::gpu_stream;
using cuda_testing::Heads;
using cuda_testing::kGpu;
using cuda_testing::Pages;
using cuda_testing::random_floats;
using cuda_testing::Result;
using cuda_testing::rounded;
using cuda_testing::Rows;
using cuda_testing::rows_of;
using cuda_testing::Sequences;

template <class T>
Result expected(const Sequences<T>& all, const std::vector<Rows>& batch) {
  const Heads& h = all.heads;
  const auto heads = all.attention_heads();
  constexpr int kBt = 16;
  Pages pages(batch, heads, kBt, 9);
  std::vector<float> keys(static_cast<size_t>(pages.num_blocks * h.kv_heads * kBt * h.dim)),
      values(keys.size()), q;
  for (size_t s = 0; s < batch.size(); ++s) {
    const Rows& rows = batch[s];
    const auto id = static_cast<size_t>(rows.sequence);
    for (int p = 0; p < rows.first + rows.count; ++p) {
      const int32_t block = pages.block(s, p / kBt);
      if (block < 0) continue;
      for (int g = 0; g < h.kv_heads; ++g) {
        for (int d = 0; d < h.dim; ++d) {
          const auto from = static_cast<size_t>((p * h.kv_heads + g) * h.dim + d);
          keys[static_cast<size_t>(((block * h.kv_heads + g) * h.dim + d) * kBt + p % kBt)] =
              all.k[id][from];
          values[static_cast<size_t>(((block * h.kv_heads + g) * kBt + p % kBt) * h.dim + d)] =
              all.v[id][from];
        }
      }
    }
    const auto begin = all.q[id].begin() + rows.first * h.heads * h.dim;
    q.insert(q.end(), begin, begin + rows.count * h.heads * h.dim);
  }
  const auto num_rows = static_cast<int64_t>(pages.positions.size());
  Result result{std::vector<float>(q.size()),
                std::vector<float>(static_cast<size_t>(num_rows * h.heads))};
  ref::attention(ConstMatrix(q.data(), num_rows, h.heads * h.dim), heads,
                 {.positions = pages.positions,
                  .seq_offsets = pages.seq_offsets,
                  .block_tables = pages.tables,
                  .max_blocks = pages.max_blocks},
                 {.keys = keys.data(),
                  .values = values.data(),
                  .block_tokens = kBt,
                  .num_kv_heads = h.kv_heads,
                  .head_dim = h.dim},
                 Matrix(result.out.data(), num_rows, h.heads * h.dim),
                 Matrix(result.lse.data(), num_rows, h.heads));
  return result;
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  double w = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double e = std::abs(double{a[i]} - double{b[i]});
    w = std::isnan(e) ? 1e9 : std::max(w, e);
  }
  return w;
}
const std::vector<int> kLengths = {1, 63, 64, 65, 255, 256, 257, 700};

template <class T, class Out>
void expect_close(Heads h, double tolerance, double lse_tolerance) {
  const Sequences<T> all(h, kLengths);
  // Decode: every row a sequence of its own.
  std::vector<Rows> last, tails;
  for (int s = 0; s < static_cast<int>(kLengths.size()); ++s) {
    const int n = kLengths[static_cast<size_t>(s)];
    last.push_back({s, n - 1, 1});
    const int rows = std::min(n, s % 2 == 0 ? 3 : 21);
    tails.push_back({s, n - rows, rows});
  }
  for (const auto& batch : {last, tails}) {
    const Result have = attend<T, Out>(all, batch), want = expected(all, batch);
    EXPECT_LT(worst(have.out, want.out), tolerance) << h.dim << " " << batch[0].count;
    EXPECT_LT(worst(have.lse, want.lse), lse_tolerance) << h.dim;
  }
}

TEST(CudaAttention, Bf16Agrees) {
  for (Heads h :
       {Heads{2, 2, 8, 0}, Heads{4, 2, 16, 0}, Heads{14, 2, 64, 0}, Heads{5, 1, 80, 100},
        Heads{8, 8, 32, 0}, Heads{4, 1, 128, 0}, Heads{2, 1, 256, 300}, Heads{18, 1, 24, 0}}) {
    SCOPED_TRACE(testing::Message() << h.heads << " " << h.dim);
    expect_close<Bf16, float>(h, 8e-3, 2e-3);
  }
}
TEST(CudaAttention, Float32Agrees) {
  for (Heads h : {Heads{2, 2, 8, 0}, Heads{4, 2, 20, 0}, Heads{3, 1, 6, 70}, Heads{6, 2, 64, 0},
                  Heads{5, 1, 80, 100}, Heads{1, 1, 256, 300}}) {
    SCOPED_TRACE(testing::Message() << h.heads << " " << h.dim);
    expect_close<float, float>(h, 1e-5, 1e-5);
  }
}

template <class T>
void expect_same(Heads h, int length) {
  SCOPED_TRACE(testing::Message() << h.heads << "/" << h.kv_heads << " of " << h.dim << " window "
                                  << h.window << " length " << length);
  const Sequences<T> all(h, {length, 300, 70, 129});
  const Result whole = attend<T>(all, {{0, 0, length}});
  const auto last = rows_of(whole, h, length - 1, 1);
  for (int bt : {8, 128}) {
    expect_same_bits(whole, attend<T>(all, {{0, 0, length}}, {.block_tokens = bt, .seed = 5}),
                     "pages");
    expect_same_bits(last, attend<T>(all, {{0, length - 1, 1}}, {.block_tokens = bt, .seed = 3}),
                     "decode");
  }
  expect_same_bits(last, attend<T>(all, {{0, length - 1, 1}}, {.more_context = 900}),
                   "more context");
  expect_same_bits(last, attend<T>(all, {{0, length - 1, 1}}, {.in_place = true}),
                   "decode in place");
  expect_same_bits(whole, attend<T>(all, {{0, 0, length}}, {.in_place = true}), "in place");
  // Cut.
  for (int begin = 0, step = 1; begin < length; begin += step, step = step * 3 + 2) {
    const int count = std::min(step, length - begin);
    expect_same_bits(rows_of(whole, h, begin, count), attend<T>(all, {{0, begin, count}}),
                     "a piece");
  }
  // In a batch.
  const Result mixed =
      attend<T>(all, {{1, 250, 50}, {2, 0, 0}, {0, length / 2, length - length / 2}, {3, 128, 1}},
                {.seed = 4});
  expect_same_bits(rows_of(whole, h, length / 2, length - length / 2),
                   rows_of(mixed, h, 50, length - length / 2), "mixed");
  const Result decode =
      attend<T>(all, {{1, 299, 1}, {0, length - 1, 1}, {2, 0, 1}, {0, length / 2, 1}}, {.seed = 6});
  expect_same_bits(last, rows_of(decode, h, 1, 1), "decode in a batch");
  expect_same_bits(rows_of(whole, h, length / 2, 1), rows_of(decode, h, 3, 1),
                   "decode of the middle");
  for (bool in_place : {false, true}) {
    const Result divided = attend<T>(all,
                                     {{0, length / 2, length - length / 2},
                                      {1, 299, 1},
                                      {2, 0, 0},
                                      {0, length - 1, 1},
                                      {3, 1, 128}},
                                     {.more_context = 900, .in_place = in_place});
    const int rows = length - length / 2;
    expect_same_bits(rows_of(whole, h, length / 2, rows), rows_of(divided, h, 0, rows),
                     "prefill beside decode");
    expect_same_bits(last, rows_of(divided, h, rows + 1, 1), "decode beside prefill");
  }
  // As many rows as sequences, but not one each.
  const Result odd = attend<T>(all, {{1, 299, 1}, {2, 0, 0}, {0, length - 2, 2}, {3, 0, 1}});
  expect_same_bits(rows_of(whole, h, length - 2, 2), rows_of(odd, h, 1, 2), "an empty sequence");
}

TEST(CudaAttention, Bf16BitsAreARowsOwn) {
  expect_same<Bf16>({7, 1, 64, 0}, 330);
  expect_same<Bf16>({4, 2, 128, 0}, 261);
  expect_same<Bf16>({2, 1, 128, 70}, 400);
  expect_same<Bf16>({2, 1, 256, 0}, 259);
  expect_same<Bf16>({18, 1, 8, 30}, 140);
}
TEST(CudaAttention, Float32BitsAreARowsOwn) {
  expect_same<float>({4, 2, 20, 0}, 150);
  expect_same<float>({2, 1, 6, 70}, 300);
}
// So many that a block takes all chunks of a row.
TEST(CudaAttention, DecodeOfManyIsDecodeOfOne) {
  const Heads h{64, 32, 16, 0};
  const Sequences<Bf16> all(h, {300});
  std::vector<Rows> batch;
  for (int p = 3; p < 300; p += 9) batch.push_back({0, p, 1});
  ASSERT_GT(batch.size() * 32, 1024u);
  const Result many = attend<Bf16>(all, batch);
  for (size_t i : {size_t{0}, batch.size() / 2, batch.size() - 1})
    expect_same_bits(rows_of(many, h, static_cast<int64_t>(i), 1), attend<Bf16>(all, {batch[i]}),
                     "one");
}
TEST(CudaAttention, DtypesOfQueriesAndResult) {
  const Heads h{6, 2, 40, 0};
  const Sequences<Bf16> all(h, {300});
  for (const Rows& rows : {Rows{0, 299, 1}, Rows{0, 260, 40}}) {
    const Result bf16 = attend<Bf16>(all, {rows}), wide = attend<Bf16, float>(all, {rows});
    expect_same_bits(wide, attend<Bf16, float, float>(all, {rows}), "float queries");
    expect_same_bits(wide, attend<Bf16, float, float>(all, {rows}, {.in_place = true}), "in place");
    Result rounded_wide = wide;
    for (float& x : rounded_wide.out) x = to_float(to_bf16(x));
    expect_same_bits(bf16, rounded_wide, "bfloat16 result");
  }
}
// Every row of a long sequence as decode gives it.
TEST(CudaAttention, DecodeIsPrefillEverywhere) {
  for (const Heads& h : {Heads{2, 1, 16, 0}, Heads{2, 1, 16, 100}, Heads{7, 1, 128, 0}}) {
    const Sequences<Bf16> all(h, {560});
    const Result whole = attend<Bf16>(all, {{0, 0, 560}});
    const int step = h.dim > 16 ? 37 : 5;
    for (int p = 0; p < 560; p += step == 5 && (p % 64 > 60 || p % 64 < 3) ? 1 : step) {
      expect_same_bits(rows_of(whole, h, p, 1), attend<Bf16>(all, {{0, p, 1}}), "a position");
      if (testing::Test::HasFailure()) return;
    }
  }
}
TEST(CudaAttention, NoRows) {
  const Sequences<Bf16> all({2, 1, 16, 0}, {4});
  attend<Bf16>(all, {});
  attend<Bf16>(all, {{0, 0, 0}});
}

// --- cache_qkv and kv_copy.

template <class T, class Cached>
void check_cache_qkv(Heads h, bool norms, bool in_place) {
  SCOPED_TRACE(testing::Message() << h.heads << "/" << h.kv_heads << " of " << h.dim << " norms "
                                  << norms);
  std::mt19937 rng(3);
  constexpr int kBt = 8;
  const std::vector<Rows> batch = {{0, 0, 3}, {1, 0, 0}, {2, 7, 1}, {3, 5, 13}};
  Pages pages(batch, {}, kBt, 2);
  const auto rows = static_cast<int64_t>(pages.positions.size());
  const int turned = h.heads + h.kv_heads, all = turned + h.kv_heads;
  auto qkv = Sequences<T>::values(rows * all * h.dim, rng);
  const auto q_norm = random_floats(h.dim, rng), k_norm = random_floats(h.dim, rng);
  constexpr int kPositions = 24;
  std::vector<float> table(static_cast<size_t>(kPositions * h.dim));
  std::vector<double> inv_freq;
  for (int i = 0; i < h.dim / 2; ++i) inv_freq.push_back(std::pow(100.0, -2.0 * i / h.dim));
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < h.dim / 2; ++i) {
      table[static_cast<size_t>(p * h.dim + i)] =
          static_cast<float>(std::cos(p * inv_freq[static_cast<size_t>(i)]));
      table[static_cast<size_t>(p * h.dim + h.dim / 2 + i)] =
          static_cast<float>(std::sin(p * inv_freq[static_cast<size_t>(i)]));
    }
  }
  const auto elements = static_cast<size_t>(pages.num_blocks * h.kv_heads * kBt * h.dim);
  DeviceArray<Cached> keys(elements), values(elements);
  DeviceArray<int32_t> positions(pages.positions), offsets(pages.seq_offsets), tables(pages.tables);
  DeviceArray<float> q_weights(q_norm), k_weights(k_norm);
  DeviceMatrix<float> device_table(kPositions, h.dim, table);
  DeviceMatrix<T> device_qkv(rows, all * h.dim, qkv), qk(rows, turned * h.dim);
  CacheQkv args{.qkv = device_qkv.view(),
                .num_heads = h.heads,
                .eps = 1e-5f,
                .table = device_table.view(),
                .batch = {.positions = positions.span(),
                          .seq_offsets = offsets.span(),
                          .block_tables = tables.span(),
                          .max_blocks = pages.max_blocks},
                .kv = {.keys = keys.data(),
                       .values = values.data(),
                       .block_tokens = kBt,
                       .num_kv_heads = h.kv_heads,
                       .head_dim = h.dim,
                       .dtype = dtype_of<Cached>(),
                       .device = kGpu},
                .qk = in_place ? device_qkv.view().slice_cols(0, turned * h.dim) : qk.view()};
  if (norms) {
    args.q_norm = q_weights.span();
    args.k_norm = k_weights.span();
  }
  cuda::cache_qkv(gpu_stream(), args);
  expect_no_findings();
  qk.expect_canaries();
  device_qkv.expect_canaries();

  // By plain loops, in place.
  Matrix host(qkv.data(), rows, turned * h.dim, all * h.dim);
  if (norms) {
    ref::rms_norm(host.slice_cols(0, h.heads * h.dim), q_norm, 1e-5f,
                  host.slice_cols(0, h.heads * h.dim), {});
    const auto k = host.slice_cols(h.heads * h.dim, turned * h.dim);
    ref::rms_norm(k, k_norm, 1e-5f, k, {});
  }
  ref::rope(host, turned, pages.positions, inv_freq, false);
  const auto have = in_place ? device_qkv.get() : qk.get();
  const int64_t have_cols = (in_place ? all : turned) * h.dim;
  const double tolerance = std::is_same_v<T, Bf16> ? 0.06 : 3e-5;
  double far = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < turned * h.dim; ++c)
      far = std::max(far, std::abs(double{have[static_cast<size_t>(r * have_cols + c)]} -
                                   double{host.row(r)[c]}));
  EXPECT_LT(far, tolerance);

  // The cache has exactly what qk and qkv have, and nothing else.
  const auto cached_keys = keys.get(), cached_values = values.get();
  std::vector<bool> written(elements);
  int64_t wrong = 0;
  for (int64_t r = 0, s = 0; r < rows; ++r) {
    while (pages.seq_offsets[static_cast<size_t>(s) + 1] <= r) ++s;
    const int p = pages.positions[static_cast<size_t>(r)];
    const int32_t block = pages.block(static_cast<size_t>(s), p / kBt);
    for (int g = 0; g < h.kv_heads; ++g) {
      for (int d = 0; d < h.dim; ++d) {
        const auto at = static_cast<size_t>(((block * h.kv_heads + g) * kBt + p % kBt) * h.dim + d);
        written[at] = true;
        const float k = have[static_cast<size_t>(r * have_cols + (h.heads + g) * h.dim + d)];
        const float v = qkv[static_cast<size_t>((r * all + turned + g) * h.dim + d)];
        wrong += to_float(cached_keys[at]) != to_float(rounded<Cached>(k));
        wrong += to_float(cached_values[at]) != to_float(rounded<Cached>(v));
      }
    }
  }
  for (size_t i = 0; i < elements; ++i)
    wrong += !written[i] &&
             (!std::isnan(to_float(cached_keys[i])) || !std::isnan(to_float(cached_values[i])));
  EXPECT_EQ(wrong, 0);
}

TEST(CudaCacheQkv, Agrees) {
  for (Heads h : {Heads{2, 1, 6, 0}, Heads{3, 1, 20, 0}, Heads{4, 2, 64, 0}, Heads{2, 2, 80, 0},
                  Heads{5, 1, 128, 0}, Heads{2, 1, 250, 0}, Heads{1, 1, 256, 0}}) {
    for (bool norms : {false, true}) {
      check_cache_qkv<float, float>(h, norms, norms);
      check_cache_qkv<float, Bf16>(h, norms, !norms);
      check_cache_qkv<Bf16, float>(h, norms, norms);
      check_cache_qkv<Bf16, Bf16>(h, norms, !norms);
    }
  }
}

template <class T>
void check_kv_copy(int kv_heads, int dim, int bt, int tokens) {
  constexpr int kBlocks = 4;
  const auto block = static_cast<size_t>(kv_heads * bt * dim);
  std::mt19937 rng(5);
  std::vector<T> keys, values;
  for (float x : random_floats(static_cast<int64_t>(kBlocks * block), rng))
    keys.push_back(rounded<T>(x));
  for (float x : random_floats(static_cast<int64_t>(kBlocks * block), rng))
    values.push_back(rounded<T>(x));
  DeviceArray<T> device_keys(keys), device_values(values);
  cuda::kv_copy(gpu_stream(), {.kv = {.keys = device_keys.data(),
                                      .values = device_values.data(),
                                      .block_tokens = bt,
                                      .num_kv_heads = kv_heads,
                                      .head_dim = dim,
                                      .dtype = dtype_of<T>(),
                                      .device = kGpu},
                               .from = 3,
                               .to = 1,
                               .tokens = tokens});
  expect_no_findings();
  for (auto* host : {&keys, &values}) {
    for (int h = 0; h < kv_heads; ++h)
      for (int i = 0; i < tokens * dim; ++i) {
        const auto at = static_cast<size_t>(h * bt * dim + i);
        (*host)[block + at] = (*host)[3 * block + at];
      }
  }
  EXPECT_EQ(std::memcmp(device_keys.get().data(), keys.data(), keys.size() * sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(device_values.get().data(), values.data(), values.size() * sizeof(T)), 0);
}
TEST(CudaKvCopy, CopiesThePositionsAlone) {
  for (int tokens : {0, 1, 5, 8}) {
    check_kv_copy<float>(2, 6, 8, tokens);
    check_kv_copy<float>(1, 3, 8, tokens);
    check_kv_copy<Bf16>(2, 6, 8, tokens);
    check_kv_copy<Bf16>(3, 128, 32, tokens * 4);
  }
}

}  // namespace
}  // namespace tailrace
