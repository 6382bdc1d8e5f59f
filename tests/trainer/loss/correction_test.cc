#include "trainer/loss/correction.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(EffectiveSampleShare, IsTheSquaredSumOverTheSumOfSquares) {
  // Weights 0.818731, 1.491825 and 1: 3.310556^2 / (3 * 3.895861).
  const std::vector<double> log_weight = {-0.2, 0.4, 0};
  EXPECT_NEAR(effective_sample_share(log_weight), 0.937728, 1e-6);
  // 2 and 1 / 2: 6.25 / (2 * 4.25).
  EXPECT_NEAR(effective_sample_share(std::vector{std::log(2.0), std::log(0.5)}), 0.735294, 1e-6);
}

TEST(EffectiveSampleShare, OfEqualWeightsIsExactlyOne) {
  for (size_t n : {1, 2, 3, 7, 1000, 100'003}) {
    EXPECT_EQ(effective_sample_share(std::vector(n, 0.0)), 1) << n;
    EXPECT_EQ(effective_sample_share(std::vector(n, -0.3)), 1) << n;
  }
}

TEST(EffectiveSampleShare, OfOneWeightThatOutweighsTheOthersIsItsShareOfTheNumber) {
  // exp(800) is beyond a double, and so is the square of exp(400).
  EXPECT_DOUBLE_EQ(effective_sample_share(std::vector<double>{800, 0, -800, 0}), 0.25);
  EXPECT_DOUBLE_EQ(effective_sample_share(std::vector<double>{-900, -400, -900, -900, -900}), 0.2);
}

}  // namespace
}  // namespace tailrace
