#include "kernels/cpu/simd.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

extern const char* const tested_isa;
const char* const tested_isa = TR_ISA_NAME;

namespace tailrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::array<float, 16> lanes(Vec16 v) {
  std::array<float, 16> out;
  simd::store(out.data(), v);
  return out;
}

// Distance of a float from the exact value, in units of the float's last place.
double ulps(float actual, double exact) {
  const float nearest = static_cast<float>(exact);
  const double unit = double{std::nextafter(std::abs(nearest), kInf)} - std::abs(nearest);
  return std::abs(actual - exact) / unit;
}

TEST(Simd, ExpIsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  // Half a million points over nearly all arguments whose result is a normal float.
  for (float x = -87.3f; x < 88.7f; x += 0.00037f) {
    worst = std::max(worst, ulps(simd::exp(x), std::exp(double{x})));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(simd::exp(0.0f), 1.0f);
}

TEST(Simd, ExpHandlesTheEndsOfItsRange) {
  EXPECT_EQ(simd::exp(-kInf), 0.0f);
  // e^-87.4 is below the smallest normal float: denormals are not made.
  EXPECT_EQ(simd::exp(-87.4f), 0.0f);
  EXPECT_EQ(simd::exp(-1e30f), 0.0f);
  EXPECT_EQ(simd::exp(kInf), kInf);
  EXPECT_EQ(simd::exp(88.8f), kInf);
  EXPECT_TRUE(std::isfinite(simd::exp(88.7f)));
  EXPECT_TRUE(std::isnan(simd::exp(std::nanf(""))));
}

TEST(Simd, ExpGivesTheSameBitsInEveryLane) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-90, 90);
  for (int round = 0; round < 200; ++round) {
    std::array<float, 16> x;
    for (float& v : x) v = uniform(rng);
    auto e = lanes(simd::exp(simd::load(x.data())));
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(e[i]), std::bit_cast<uint32_t>(simd::exp(x[i]))) << x[i];
    }
  }
}

TEST(Simd, ReduceAddJoinsLanesInTheDocumentedTree) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::array<float, 16> x;
  for (float& v : x) v = normal(rng);
  std::array<float, 16> tree = x;
  for (size_t width = 8; width >= 1; width /= 2) {
    for (size_t i = 0; i < width; ++i) tree[i] += tree[i + width];
  }
  EXPECT_EQ(simd::reduce_add(simd::load(x.data())), tree[0]);
  EXPECT_EQ(simd::reduce_max(simd::load(x.data())), *std::max_element(x.begin(), x.end()));
}

TEST(Simd, TailsReadAndWriteOnlyTheirLanes) {
  std::array<float, 16> x;
  for (size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(i + 1);
  for (int64_t n = -3; n <= 19; ++n) {
    auto loaded = lanes(simd::load(x.data(), n));
    std::array<float, 16> stored;
    stored.fill(-1);
    simd::store(stored.data(), simd::load(x.data()), n);
    auto selected = lanes(simd::select_first(n, simd::broadcast(7), simd::broadcast(9)));
    for (size_t i = 0; i < 16; ++i) {
      const bool in = static_cast<int64_t>(i) < n;
      EXPECT_EQ(loaded[i], in ? x[i] : 0.0f);
      EXPECT_EQ(stored[i], in ? x[i] : -1.0f);
      EXPECT_EQ(selected[i], in ? 7.0f : 9.0f);
    }
  }
}

TEST(Simd, Transpose16SwapsRowsAndColumns) {
  std::vector<float> in(16 * 19), out(16 * 21, -1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  simd::transpose16(in.data(), 19, out.data(), 21);
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 16; ++j) EXPECT_EQ(out[j * 21 + i], in[i * 19 + j]);
    for (size_t j = 16; j < 21; ++j) EXPECT_EQ(out[i * 21 + j], -1);
  }
}

}  // namespace
}  // namespace tailrace
