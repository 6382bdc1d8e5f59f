// Rope on a GPU: by bits against its formula, and close to kernels/ref.
#include <cmath>
#include <cstring>
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
using cuda_testing::random_floats;

template <class T>
void expect_rope(int64_t rows, int heads, int dim) {
  SCOPED_TRACE(::testing::Message() << rows << " rows of " << heads << " heads of " << dim);
  constexpr bool kRounds = std::is_same_v<T, Bf16>;
  constexpr int kPositions = 90;
  const int half = dim / 2;
  std::mt19937 rng(static_cast<unsigned>(rows + heads * dim));
  std::vector<double> frequencies;
  for (int i = 0; i < half; ++i) frequencies.push_back(std::pow(50.0, -2.0 * i / dim));
  std::vector<float> table;
  for (int p = 0; p < kPositions; ++p) {
    for (double f : frequencies) table.push_back(static_cast<float>(std::cos(p * f)));
    for (double f : frequencies) table.push_back(static_cast<float>(std::sin(p * f)));
  }
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < rows; ++t) positions.push_back(static_cast<int32_t>(t * 37 % kPositions));
  std::vector<float> x = random_floats(rows * heads * dim, rng);
  if (kRounds)
    for (float& f : x) f = to_float(to_bf16(f));

  const DeviceMatrix<float> device_table(kPositions, dim, table);
  const DeviceArray<int32_t> device_positions(positions);
  for (const bool inverse : {false, true}) {
    DeviceMatrix<T> device_x(rows, heads * dim, x);
    cuda::rope(gpu_stream(), {.x = device_x.view(),
                              .num_heads = heads,
                              .positions = device_positions.span(),
                              .table = device_table.view(),
                              .inverse = inverse});
    expect_no_findings();
    device_x.expect_canaries();
    const std::vector<float> have = device_x.get();

    std::vector<float> exact = x, close = x;
    ref::rope(Matrix(close.data(), rows, heads * dim), heads, positions, frequencies, inverse);
    for (int64_t at = 0; at < rows * heads; ++at) {
      const float* angles = table.data() + positions[static_cast<size_t>(at / heads)] * dim;
      float* pair = exact.data() + at * dim;
      for (int i = 0; i < half; ++i, ++pair) {
        const float a = pair[0], b = pair[half], c = angles[i];
        const float s = inverse ? -angles[half + i] : angles[half + i];
        pair[0] = std::fma(a, c, -(b * s));
        pair[half] = std::fma(b, c, a * s);
        // Both factors, their products and the sum are rounded.
        const double most = (std::abs(double{a}) + std::abs(double{b})) * 4 * 0x1p-24;
        const auto first = static_cast<size_t>(pair - exact.data());
        const auto second = first + static_cast<size_t>(half);
        ASSERT_LE(std::abs(double{exact[first]} - close[first]), most);
        ASSERT_LE(std::abs(double{exact[second]} - close[second]), most);
      }
    }
    if (kRounds)
      for (float& f : exact) f = to_float(to_bf16(f));
    ASSERT_EQ(have.size(), exact.size());
    for (size_t i = 0; i < have.size(); ++i)
      ASSERT_EQ(have[i], exact[i]) << "at " << i << ", inverse " << inverse;
  }
}

TEST(CudaRope, IsItsFormula) {
  for (const int dim : {2, 6, 10, 24, 64, 128}) {
    for (const int64_t rows : {0, 1, 13}) {
      expect_rope<float>(rows, /*heads=*/3, dim);
      expect_rope<Bf16>(rows, /*heads=*/3, dim);
    }
  }
  expect_rope<float>(3, /*heads=*/9, /*dim=*/256);
  expect_rope<Bf16>(3, /*heads=*/9, /*dim=*/256);
}

}  // namespace
}  // namespace tailrace
