// Products and log-softmax of the CUDA backend against kernels/ref, over shapes that fit no tile.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
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

constexpr float kInf = std::numeric_limits<float>::infinity();

size_t index(int64_t i) { return static_cast<size_t>(i); }

std::vector<float> rounded(std::vector<float> values) {
  for (float& x : values) x = to_float(to_bf16(x));
  return values;
}

ConstMatrix matrix(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), rows, cols};
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected,
                      const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(float)), 0)
        << what << ", at " << i << ": " << actual[i] << ", expected " << expected[i];
}

struct DeviceWeight {
  DeviceArray<std::byte> memory;
  Weight weight;
  DeviceWeight(const std::vector<float>& master, int64_t out, int64_t in, Dtype dtype)
      : memory(cuda::weight_bytes(dtype, out, in)),
        weight(cuda::pack_weight(gpu_stream(), matrix(master, out, in), dtype, memory.span())) {}
};

TEST(CudaUnpackRows, GivesTheRowsThatWerePacked) {
  constexpr int64_t kOut = 70, kIn = 45;
  std::mt19937 rng(5);
  const std::vector<float> w = random_floats(kOut * kIn, rng);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const DeviceWeight packed(w, kOut, kIn, dtype);
    const std::vector<float> expected = dtype == Dtype::kBF16 ? rounded(w) : w;
    std::vector<float> rows(20 * kIn);
    cuda::unpack_rows(gpu_stream(), packed.weight, /*first=*/50, Matrix(rows.data(), 20, kIn));
    expect_same_bits(rows, std::span(expected).last(rows.size()), "rows");
    // Rows that begin at a multiple of kWeightRows are a weight of their own.
    const DeviceWeight last(std::vector<float>(w.begin() + kWeightRows * kIn, w.end()),
                            kOut - kWeightRows, kIn, dtype);
    const size_t begin = cuda::weight_bytes(dtype, kWeightRows, kIn);
    const std::vector<std::byte> all = packed.memory.get(), part = last.memory.get();
    EXPECT_TRUE(std::ranges::equal(std::span(all).subspan(begin), part));
  }
  expect_no_findings();
}

// The product of the rows [begin, end) of x; by linear(), or by one kernel of those for bfloat16.
template <class X, class Y>
std::vector<float> multiply(const std::vector<float>& x, const Weight& weight,
                            std::span<const float> bias, int64_t begin, int64_t end,
                            cuda::GemmTiles tiles = cuda::GemmTiles::kByShape) {
  const auto first = x.begin() + begin * weight.in, last = x.begin() + end * weight.in;
  const DeviceMatrix<X> from(end - begin, weight.in, std::vector<float>(first, last));
  DeviceMatrix<Y> to(end - begin, weight.out);
  const ConstTensor in = from.view();
  const Tensor out = to.view();
  if (tiles == cuda::GemmTiles::kByShape) {
    cuda::linear(gpu_stream(), {.x = in, .weight = weight, .bias = bias, .y = out});
  } else {
    cuda::multiply_bf16(gpu_stream(),
                        {.x = in.data,
                         .x_is_float = std::is_same_v<X, float>,
                         .x_stride = in.stride,
                         .weight = reinterpret_cast<const Bf16*>(weight.data),
                         .weight_stride = (weight.in + 63) / 64 * 64,
                         .bias = bias.empty() ? nullptr : bias.data(),
                         .y = out.data,
                         .y_is_float = std::is_same_v<Y, float>,
                         .y_stride = out.stride,
                         .tokens = end - begin,
                         .out = weight.out,
                         .in = weight.in},
                        tiles);
  }
  to.expect_canaries();
  expect_no_findings();
  return to.get();
}

template <class X, class Y>
void expect_product(Dtype dtype, int64_t tokens, int64_t out, int64_t in, bool with_bias) {
  const std::string what = fmt::format("[{}, {}] x [{}, {}]", tokens, in, out, in);
  SCOPED_TRACE(what);
  std::mt19937 rng(static_cast<unsigned>(tokens * 7919 + out * 31 + in));
  const std::vector<float> x = random_floats(tokens * in, rng), w = random_floats(out * in, rng),
                           bias = random_floats(with_bias ? out : 0, rng);
  const DeviceWeight packed(w, out, in, dtype);
  const DeviceArray<float> device_bias(bias);
  const auto y = multiply<X, Y>(x, packed.weight, device_bias.span(), 0, tokens);

  const bool rounds = dtype == Dtype::kBF16;
  const auto used_x = rounds ? rounded(x) : x, used_w = rounds ? rounded(w) : w;
  std::vector<float> expected(y.size()), magnitude(y.size());
  ref::linear(matrix(used_x, tokens, in), matrix(used_w, out, in), bias,
              {expected.data(), tokens, out});
  auto magnitude_of = [](std::vector<float> v) {
    for (float& e : v) e = std::abs(e);
    return v;
  };
  ref::linear(matrix(magnitude_of(used_x), tokens, in), matrix(magnitude_of(used_w), out, in),
              magnitude_of(bias), {magnitude.data(), tokens, out});
  const float of_y = std::is_same_v<Y, Bf16> ? 0x1p-8f : 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double tolerance =
        0x1p-24 * static_cast<double>(in + 2) * magnitude[i] + of_y * std::abs(expected[i]);
    ASSERT_LE(std::abs(double{y[i]} - expected[i]), tolerance + 1e-30) << "at " << i;
  }
  if (tokens == 0) return;
  if (rounds) {
    for (const auto tiles : {cuda::GemmTiles::kFewTokens, cuda::GemmTiles::kManyTokens})
      expect_same_bits(multiply<X, Y>(x, packed.weight, device_bias.span(), 0, tokens, tiles), y,
                       "other tiles");
  }
  // A row has these bits alone too, and in a smaller batch.
  for (const int64_t begin : {int64_t{0}, tokens / 2, tokens - 1}) {
    for (const int64_t count : {1, 9, 40}) {
      const int64_t end = std::min(tokens, begin + count);
      const auto part = multiply<X, Y>(x, packed.weight, device_bias.span(), begin, end);
      expect_same_bits(part, std::span(y).subspan(index(begin * out), index((end - begin) * out)),
                       fmt::format("rows {} to {}", begin, end));
    }
  }
}

TEST(CudaLinear, Bf16TokenCounts) {
  for (const int64_t tokens : {0, 1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 130})
    expect_product<Bf16, Bf16>(Dtype::kBF16, tokens, 40, 136, tokens % 2 == 0);
}

TEST(CudaLinear, Bf16Shapes) {
  for (const int64_t out : {1, 7, 8, 16, 17, 64, 130})
    expect_product<Bf16, float>(Dtype::kBF16, 9, out, 72, true);
  for (const int64_t in : {1, 8, 20, 64, 65, 130, 512})
    expect_product<Bf16, float>(Dtype::kBF16, 3, 20, in, false);
}

TEST(CudaLinear, Bf16RoundsX) {
  for (const int64_t tokens : {1, 16, 40}) {
    for (const int64_t in : {1, 20, 65, 130}) {
      expect_product<float, float>(Dtype::kBF16, tokens, 17, in, true);
      expect_product<float, Bf16>(Dtype::kBF16, tokens, 17, in, false);
    }
  }
}

// All counts of slices, in unequal pieces too.
TEST(CudaLinear, Bf16Slices) {
  for (const int64_t in : {256, 264, 512, 700})
    expect_product<Bf16, float>(Dtype::kBF16, 5, 33, in, true);
  expect_product<Bf16, float>(Dtype::kBF16, 17, 33, 520, true);
  expect_product<Bf16, float>(Dtype::kBF16, 1, 4193, 264, false);
  expect_product<float, float>(Dtype::kBF16, 1, 8385, 136, false);
}

TEST(CudaLinear, Bf16LargeTiles) {
  expect_product<Bf16, Bf16>(Dtype::kBF16, 130, 129, 20, true);
  expect_product<float, float>(Dtype::kBF16, 100, 257, 72, false);
  expect_product<Bf16, float>(Dtype::kBF16, 129, 60, 264, true);   // two slices
  expect_product<float, Bf16>(Dtype::kBF16, 65, 130, 520, false);  // four
}

// More token tiles than one group has.
TEST(CudaLinear, Bf16Groups) {
  expect_product<Bf16, float>(Dtype::kBF16, 17 * 128 + 3, 520, 12, false);
}

// A part of a wider y, at places where no four elements are one access.
template <class Y>
void expect_columns_of_y() {
  constexpr int64_t kTokens = 5, kOut = 24, kIn = 40, kBefore = 3, kBehind = 2;
  std::mt19937 rng(6);
  const auto x = random_floats(kTokens * kIn, rng), w = random_floats(kOut * kIn, rng);
  const DeviceWeight packed(w, kOut, kIn, Dtype::kBF16);
  const auto expected = multiply<Bf16, Y>(x, packed.weight, {}, 0, kTokens);
  const DeviceMatrix<Bf16> from(kTokens, kIn, x);
  constexpr int64_t kCols = kBefore + kOut + kBehind;
  DeviceMatrix<Y> to(kTokens, kCols, std::vector<float>(index(kTokens * kCols), 7));
  cuda::linear(gpu_stream(), {.x = from.view(),
                              .weight = packed.weight,
                              .y = to.view().slice_cols(kBefore, kBefore + kOut)});
  expect_no_findings();
  const auto all = to.get();
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t c = 0; c < kCols; ++c) {
      const bool inside = c >= kBefore && c < kBefore + kOut;
      ASSERT_EQ(all[index(t * kCols + c)], inside ? expected[index(t * kOut + c - kBefore)] : 7.0f)
          << t << ", " << c;
    }
}
TEST(CudaLinear, Bf16ColumnsOfY) {
  expect_columns_of_y<float>();
  expect_columns_of_y<Bf16>();
}

TEST(CudaLinear, Float32) {
  for (const int64_t tokens : {0, 1, 2, 7, 33, 65})
    expect_product<float, float>(Dtype::kF32, tokens, 70, 50, tokens % 2 == 0);
  for (const int64_t out : {1, 7, 8, 16, 17, 64, 130})
    expect_product<float, float>(Dtype::kF32, 5, out, 20, true);
  for (const int64_t in : {1, 8, 20, 64, 65, 130})
    expect_product<float, float>(Dtype::kF32, 5, 7, in, false);
}

// One fused multiply-add a term, k ascending: the CPU's bits.
TEST(CudaLinear, Float32IsOneChain) {
  constexpr int64_t kTokens = 3, kOut = 5, kIn = 83;
  std::mt19937 rng(1);
  const auto x = random_floats(kTokens * kIn, rng), w = random_floats(kOut * kIn, rng),
             bias = random_floats(kOut, rng);
  const DeviceWeight packed(w, kOut, kIn, Dtype::kF32);
  const DeviceArray<float> device_bias(bias);
  const auto y = multiply<float, float>(x, packed.weight, device_bias.span(), 0, kTokens);
  std::vector<float> expected;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t o = 0; o < kOut; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < kIn; ++i)
        sum = std::fmaf(x[index(t * kIn + i)], w[index(o * kIn + i)], sum);
      expected.push_back(sum + bias[index(o)]);
    }
  }
  expect_same_bits(y, expected, "chain");
  // -0, which one more term of 0 would make 0.
  const DeviceWeight tiny({1e-30f}, 1, 1, Dtype::kF32);
  expect_same_bits(multiply<float, float>({-1e-30f}, tiny.weight, {}, 0, 1), std::vector{-0.0f},
                   "underflow");
}

TEST(CudaLinear, PackedRowsArePaddedWithZeros) {
  constexpr int64_t kOut = 3, kIn = 70;
  std::mt19937 rng(2);
  const auto w = random_floats(kOut * kIn, rng);
  const DeviceWeight packed(w, kOut, kIn, Dtype::kBF16);
  ASSERT_EQ(packed.memory.size(), size_t{kOut * 128 * 2});
  const auto bytes = packed.memory.get();
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < 128; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * (o * 128 + i), 2);
      EXPECT_EQ(bits, i < kIn ? to_bf16(w[index(o * kIn + i)]).bits : 0);
    }
  }
}

// Of master weights in memory of the device, in the order of the stream.
TEST(CudaLinear, PacksAMasterOfTheDevice) {
  struct Shape {
    int64_t out, in, before;  // the last: columns that the master leaves out
  };
  std::mt19937 rng(7);
  for (const auto [out, in, before] :
       {Shape{0, 8, 0}, {1, 1, 0}, {3, 70, 0}, {5, 64, 0}, {2, 1030, 0}, {4, 40, 3}}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      SCOPED_TRACE(fmt::format("[{}, {}]", out, in));
      std::vector<float> w = random_floats(out * (before + in), rng);
      if (out > 0) w[index(before)] = NAN;
      const DeviceMatrix<float> master(out, before + in, w);
      std::vector<float> part;
      for (int64_t r = 0; r < out; ++r) {
        const auto row = w.begin() + r * (before + in);
        part.insert(part.end(), row + before, row + before + in);
      }
      const DeviceWeight expected(part, out, in, dtype);
      // Behind it are canaries.
      const size_t bytes = cuda::weight_bytes(dtype, out, in);
      DeviceArray<std::byte> memory(bytes + 64);
      const Weight packed =
          cuda::pack_weight(gpu_stream(), master.view().slice_cols(before, before + in), dtype,
                            memory.span().first(bytes));
      expect_no_findings();
      EXPECT_EQ(packed.data, memory.data());
      EXPECT_EQ(packed.out, out);
      EXPECT_EQ(packed.in, in);
      EXPECT_EQ(packed.dtype, dtype);
      EXPECT_TRUE(packed.device == kGpu);
      auto all = memory.get(), want = expected.memory.get();
      want.resize(bytes + 64, std::byte{0xFF});
      EXPECT_TRUE(all == want);
    }
  }
}

// More than one piece of staging memory.
TEST(CudaLinear, PacksInPieces) {
  constexpr int64_t kOut = 300, kIn = 32768;
  std::vector<float> w(index(kOut * kIn));
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 256);
  const DeviceWeight packed(w, kOut, kIn, Dtype::kBF16);
  const auto bytes = packed.memory.get();
  int64_t wrong = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    wrong += bits != to_bf16(w[i]).bits;
  }
  EXPECT_EQ(wrong, 0);
}

struct Lse {
  std::vector<float> lse, entropy;
};

Lse log_sum_exp_of(const std::vector<float>& logits, int64_t rows, int64_t vocab, float inv) {
  const DeviceMatrix<float> z(rows, vocab, logits);
  DeviceArray<float> lse(index(rows)), entropy(index(rows));
  cuda::log_sum_exp(
      gpu_stream(),
      {.logits = z.view(), .inv_temperature = inv, .lse = lse.span(), .entropy = entropy.span()});
  expect_no_findings();
  return {lse.get(), entropy.get()};
}

std::vector<float> row_of(const std::vector<float>& values, int64_t row, int64_t cols) {
  return {values.begin() + row * cols, values.begin() + (row + 1) * cols};
}

TEST(CudaLogSumExp, IsRef) {
  for (const int64_t vocab : {1, 2, 31, 127, 128, 500, 511, 512, 513, 1000, 9001, 17000}) {
    for (const float inv : {1.0f, 0.7f}) {
      SCOPED_TRACE(vocab);
      constexpr int64_t kRows = 3;
      std::mt19937 rng(static_cast<unsigned>(vocab));
      auto logits = random_floats(kRows * vocab, rng, 4);
      if (vocab > 1) logits[1] = -kInf;
      const Lse got = log_sum_exp_of(logits, kRows, vocab, inv);
      Lse expected{std::vector<float>(kRows), std::vector<float>(kRows)};
      ref::log_sum_exp(matrix(logits, kRows, vocab), inv, expected.lse, expected.entropy);
      for (size_t r = 0; r < kRows; ++r) {
        EXPECT_NEAR(got.lse[r], expected.lse[r], 2e-6 * (1 + std::abs(expected.lse[r])));
        EXPECT_NEAR(got.entropy[r], expected.entropy[r], 2e-5);
        const Lse alone =
            log_sum_exp_of(row_of(logits, static_cast<int64_t>(r), vocab), 1, vocab, inv);
        expect_same_bits(alone.lse, std::span(got.lse).subspan(r, 1), "lse alone");
        expect_same_bits(alone.entropy, std::span(got.entropy).subspan(r, 1), "entropy alone");
      }
    }
  }
}

// A batch that gives a row fewer threads.
TEST(CudaLogSumExp, RowInALargeBatch) {
  constexpr int64_t kRows = 133, kVocab = 512 * 17 + 100;
  std::mt19937 rng(3);
  const auto logits = random_floats(kRows * kVocab, rng, 3);
  const Lse all = log_sum_exp_of(logits, kRows, kVocab, 1.25f);
  const Lse alone = log_sum_exp_of(row_of(logits, 131, kVocab), 1, kVocab, 1.25f);
  EXPECT_EQ(all.lse[131], alone.lse[0]);
  EXPECT_EQ(all.entropy[131], alone.entropy[0]);
}

TEST(CudaLogSumExp, Extremes) {
  constexpr int64_t kVocab = 1200;
  std::mt19937 rng(4);
  const auto with = [&](int64_t at, float value) {
    auto z = random_floats(kVocab, rng);
    z[index(at)] = value;
    return log_sum_exp_of(z, 1, kVocab, 1);
  };
  for (const int64_t at : {0, 600, 1199}) {
    EXPECT_FALSE(std::isfinite(with(at, NAN).lse[0]));
    EXPECT_FALSE(std::isfinite(with(at, kInf).lse[0]));
    EXPECT_TRUE(std::isfinite(with(at, -kInf).lse[0]));
    EXPECT_TRUE(std::isfinite(with(at, -kInf).entropy[0]));
    EXPECT_EQ(with(at, 1e30f).lse[0], 1e30f);
    EXPECT_EQ(with(at, 1e30f).entropy[0], 0);
  }
  const auto of = [](float value) {
    return log_sum_exp_of(std::vector<float>(index(kVocab), value), 1, kVocab, 1);
  };
  EXPECT_FALSE(std::isfinite(of(NAN).lse[0]));
  EXPECT_EQ(of(-kInf).lse[0], -kInf);
  EXPECT_FALSE(std::isfinite(of(kInf).lse[0]));
  EXPECT_NEAR(of(-3e38f).entropy[0], std::log(1200.0), 1e-5);
  // A block without mass beside one with, and a NaN in the one without.
  std::vector<float> z(index(kVocab), -kInf);
  z[7] = 2;
  EXPECT_EQ(log_sum_exp_of(z, 1, kVocab, 1).lse[0], 2);
  EXPECT_EQ(log_sum_exp_of(z, 1, kVocab, 1).entropy[0], 0);
  z[1000] = NAN;
  EXPECT_FALSE(std::isfinite(log_sum_exp_of(z, 1, kVocab, 1).lse[0]));
}

struct DeviceSets {
  std::vector<int64_t> host_offsets = {0};
  std::vector<int32_t> host_ids;
  DeviceArray<int64_t> offsets{0};
  DeviceArray<int32_t> ids{0};
  explicit DeviceSets(const std::vector<std::vector<int32_t>>& sets) {
    for (const auto& set : sets) {
      host_ids.insert(host_ids.end(), set.begin(), set.end());
      host_offsets.push_back(static_cast<int64_t>(host_ids.size()));
    }
    offsets = DeviceArray<int64_t>(host_offsets);
    ids = DeviceArray<int32_t>(host_ids);
  }
  KeptSets host() const { return {host_offsets, host_ids}; }
  KeptSets device() const { return {offsets.span(), ids.span()}; }
};

std::vector<int32_t> every(int32_t step, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int32_t id = step - 1; id < vocab; id += step) ids.push_back(id);
  return ids;
}

TEST(CudaKeptLogSumExp, IsRefAndAllTokensGiveTheBitsOfLse) {
  for (const int64_t vocab : {5, 130, 1300}) {
    SCOPED_TRACE(vocab);
    constexpr int64_t kRows = 5;
    std::mt19937 rng(static_cast<unsigned>(vocab));
    const auto logits = random_floats(kRows * vocab, rng, 3);
    const DeviceSets sets({every(1, vocab), {}, every(2, vocab), {3}, every(1, vocab)});
    const DeviceMatrix<float> z(kRows, vocab, logits);
    DeviceArray<float> kept(std::vector<float>(kRows, -77.0f));
    cuda::kept_log_sum_exp(gpu_stream(), {.logits = z.view(),
                                          .kept = sets.device(),
                                          .inv_temperature = 0.8f,
                                          .kept_lse = kept.span()});
    expect_no_findings();
    const auto got = kept.get();
    std::vector<float> expected(kRows, -77.0f);
    ref::kept_log_sum_exp(matrix(logits, kRows, vocab), sets.host(), 0.8f, expected);
    for (size_t r = 0; r < kRows; ++r) EXPECT_NEAR(got[r], expected[r], 1e-5) << r;
    const auto lse = log_sum_exp_of(logits, kRows, vocab, 0.8f).lse;
    for (const size_t r : {0, 4})
      expect_same_bits(std::span(got).subspan(r, 1), std::span(lse).subspan(r, 1), "all kept");
    // The members side by side in a row of their own.
    std::vector<float> members;
    for (const int32_t id : every(2, vocab)) members.push_back(logits[index(2 * vocab + id)]);
    const auto row = log_sum_exp_of(members, 1, static_cast<int64_t>(members.size()), 0.8f).lse;
    expect_same_bits(std::span(got).subspan(2, 1), row, "a row of its own");
  }
}

struct Head {
  int64_t rows, vocab, dim;
  std::vector<float> hidden, weight;
  std::vector<int32_t> targets;
  std::vector<std::vector<int32_t>> sets;  // empty: none

  struct Result {
    std::vector<float> logprob, lse, entropy;
  };
  template <class X>
  Result run(int64_t begin, int64_t end, Dtype dtype) const {
    const int64_t count = end - begin;
    const DeviceMatrix<X> x(count, dim, {hidden.begin() + begin * dim, hidden.begin() + end * dim});
    const DeviceWeight packed(weight, vocab, dim, dtype);
    const DeviceArray<int32_t> ids(
        std::vector<int32_t>(targets.begin() + begin, targets.begin() + end));
    const DeviceSets kept(
        sets.empty() ? sets
                     : std::vector<std::vector<int32_t>>(sets.begin() + begin, sets.begin() + end));
    DeviceArray<std::byte> scratch(cuda::linear_logprob_workspace_bytes(count, vocab, dim));
    Workspace workspace(scratch.span(), kGpu);
    DeviceArray<float> logprob(index(count)), lse(index(count)), entropy(index(count));
    cuda::linear_logprob(gpu_stream(), workspace,
                         {.head = {.hidden = x.view(),
                                   .weight = packed.weight,
                                   .targets = ids.span(),
                                   .inv_temperature = 0.9f,
                                   .kept = sets.empty() ? KeptSets{} : kept.device()},
                          .out = {logprob.span(), lse.span(), entropy.span()}});
    expect_no_findings();
    EXPECT_EQ(workspace.used(), 0u);
    return {logprob.get(), lse.get(), entropy.get()};
  }
};

TEST(CudaLinearLogprob, IsRefAndARowAloneHasTheSameBits) {
  for (const bool with_sets : {false, true}) {
    Head head{.rows = 11,
              .vocab = 1555,
              .dim = 72,
              .hidden = {},
              .weight = {},
              .targets = {},
              .sets = {}};
    std::mt19937 rng(5);
    head.hidden = rounded(random_floats(head.rows * head.dim, rng));
    head.weight = rounded(random_floats(head.vocab * head.dim, rng, 0.3f));
    for (int64_t r = 0; r < head.rows; ++r) {
      head.targets.push_back(static_cast<int32_t>(r % 2 == 0 ? 3 * r : head.vocab - 1 - r));
      if (!with_sets) continue;
      std::vector<int32_t> set = r % 3 == 0 ? std::vector<int32_t>{} : every(1 + r % 3, head.vocab);
      if (!set.empty()) set.push_back(head.targets.back());
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      head.sets.push_back(std::move(set));
    }
    const auto got = head.run<Bf16>(0, head.rows, Dtype::kBF16);
    const auto size = index(head.rows);
    Head::Result expected{std::vector<float>(size), std::vector<float>(size),
                          std::vector<float>(size)};
    const DeviceSets kept(head.sets);
    ref::linear_logprob({.hidden = matrix(head.hidden, head.rows, head.dim),
                         .weight = {},
                         .targets = head.targets,
                         .inv_temperature = 0.9f,
                         .kept = with_sets ? kept.host() : KeptSets{}},
                        matrix(head.weight, head.vocab, head.dim),
                        {expected.logprob, expected.lse, expected.entropy});
    for (size_t r = 0; r < size; ++r) {
      EXPECT_NEAR(got.logprob[r], expected.logprob[r], 3e-5) << r;
      EXPECT_NEAR(got.lse[r], expected.lse[r], 3e-5) << r;
      EXPECT_NEAR(got.entropy[r], expected.entropy[r], 3e-5) << r;
      const auto i = static_cast<int64_t>(r);
      const auto alone = head.run<Bf16>(i, i + 1, Dtype::kBF16);
      EXPECT_EQ(alone.logprob[0], got.logprob[r]);
      EXPECT_EQ(alone.lse[0], got.lse[r]);
      EXPECT_EQ(alone.entropy[0], got.entropy[r]);
    }
    // bfloat16 values: float32 hidden states are the same.
    expect_same_bits(head.run<float>(0, head.rows, Dtype::kBF16).logprob, got.logprob, "float32");
  }
}

// Rounding alone may put lse_K above lse: a draw from K is never less likely than one from all.
TEST(CudaLinearLogprob, LogMassIsNotAboveZero) {
  constexpr int64_t kVocab = 1400;
  int above = 0;
  for (unsigned seed = 0; seed < 64; ++seed) {
    std::mt19937 rng(seed);
    Head head{.rows = 1,
              .vocab = kVocab,
              .dim = 1,
              .hidden = {1},
              .weight = {},
              .targets = {5},
              .sets = {}};
    head.weight = random_floats(kVocab, rng, 2);
    head.weight[0] = -100;
    std::vector<int32_t> set(kVocab - 1);
    std::iota(set.begin(), set.end(), 1);
    head.sets = {set};
    const auto got = head.run<float>(0, 1, Dtype::kF32);
    const std::vector<float> kept(head.weight.begin() + 1, head.weight.end());
    const float kept_lse = log_sum_exp_of(kept, 1, kVocab - 1, 0.9f).lse[0];
    above += kept_lse > got.lse[0];
    EXPECT_EQ(got.logprob[0], head.weight[5] * 0.9f - got.lse[0] - log_mass(kept_lse, got.lse[0]));
  }
  EXPECT_GT(above, 0) << "says nothing";
}

// Neighbours in memory are logits of other rows: a target outside the vocabulary is none of them.
TEST(CudaLinearLogprob, TargetOutsideTheVocabularyIsNaN) {
  Head head{.rows = 2,
            .vocab = 8,  // rows without a gap
            .dim = 1,
            .hidden = {1, 1},
            .weight = {1, 2, 3, 4, 5, 6, 7, 8},
            .targets = {8, -1},
            .sets = {}};
  const auto got = head.run<float>(0, 2, Dtype::kF32);
  for (const float logprob : got.logprob) EXPECT_TRUE(std::isnan(logprob));
  for (const float lse : got.lse) EXPECT_TRUE(std::isfinite(lse));
}

}  // namespace
}  // namespace tailrace
