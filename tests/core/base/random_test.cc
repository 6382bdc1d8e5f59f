#include "core/base/random.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32 10 rounds).
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(uint64_t{0x299f31d0} << 32 | 0xa4093822,
                   {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Mix, DependsOnTheOrderAndOnEachPart) {
  EXPECT_NE(mix({1, 2}), mix({2, 1}));
  EXPECT_NE(mix({1, 2}), mix({1, 3}));
  EXPECT_NE(mix({1}), mix({1, 0}));
  EXPECT_EQ(mix({1, 2}), mix({1, 2}));
}

TEST(UniformDouble, StaysBelowOne) {
  EXPECT_EQ(uniform_double(0, 0), 0.0);
  EXPECT_LT(uniform_double(~0u, ~0u), 1.0);
}

TEST(Rng, SameSeedSameNumbers) {
  Rng a(7), b(7), c(8);
  uint32_t first = a.next_u32();
  EXPECT_EQ(first, b.next_u32());
  EXPECT_NE(first, c.next_u32());
}

TEST(Rng, DrawsWithTheRightMoments) {
  Rng rng(1);
  constexpr int kDraws = 40000;
  double sum = 0, squares = 0, mean = 0;
  std::vector<int> counts(7);
  for (int i = 0; i < kDraws; ++i) {
    double x = rng.normal();
    sum += x;
    squares += x * x;
    mean += rng.uniform();
    ++counts[static_cast<size_t>(rng.below(7))];
  }
  // Bounds of five standard errors: 1/sqrt(n), sqrt(2/n), sqrt(1/12n), sqrt(n p (1-p)).
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(mean / kDraws, 0.5, 5 * std::sqrt(1 / 12.0 / kDraws));
  for (int count : counts) EXPECT_NEAR(count, kDraws / 7.0, 5 * std::sqrt(kDraws * 6 / 49.0));
}

}  // namespace
}  // namespace tailrace
