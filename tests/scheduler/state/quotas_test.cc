#include "scheduler/state/quotas.h"

#include <numeric>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace::scheduler {
namespace {

using Parts = std::vector<int64_t>;

Parts deal(int64_t total, const std::vector<double>& ratios) { return quotas(total, ratios); }

TEST(Quotas, AreTheRatiosWhereTheseDivide) {
  EXPECT_EQ(deal(4, {3, 1}), (Parts{3, 1}));
  EXPECT_EQ(deal(8, {0.75, 0.25}), (Parts{6, 2}));
  EXPECT_EQ(deal(10, {0.1, 0.2, 0.7}), (Parts{1, 2, 7}));
  EXPECT_EQ(deal(7, {1}), (Parts{7}));
}

TEST(Quotas, GiveWhatIsLeftToTheLargestRemainders) {
  EXPECT_EQ(deal(8, {1, 1, 1}), (Parts{3, 3, 2})) << "equal ones: the first";
  EXPECT_EQ(deal(10, {6, 5, 1}), (Parts{5, 4, 1}));  // 5, 4.17, 0.83
  EXPECT_EQ(deal(2, {1, 1, 1}), (Parts{1, 1, 0}));
}

TEST(Quotas, GiveNothingToARatioOfZero) {
  EXPECT_EQ(deal(5, {2, 0, 1}), (Parts{3, 0, 2}));
  EXPECT_EQ(deal(5, {0, 0}), (Parts{0, 0}));
  EXPECT_EQ(deal(0, {1, 2}), (Parts{0, 0}));
}

TEST(Quotas, AlwaysAddUpAndAreWithinOneOfTheShare) {
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> ratios;
    for (int64_t i = 1 + rng.below(6); i > 0; --i) ratios.push_back(rng.uniform() * 10 + 1e-9);
    const int64_t total = rng.below(1'000'000);
    const Parts parts = deal(total, ratios);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), total);
    const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
    for (size_t i = 0; i < parts.size(); ++i)
      EXPECT_LT(
          std::abs(static_cast<double>(parts[i]) - static_cast<double>(total) * ratios[i] / sum),
          1 + 1e-6);
  }
}

}  // namespace
}  // namespace tailrace::scheduler
