#include "cli/eval/statistics.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Wilson, MatchesPublishedValues) {
  // Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20.
  Estimate a = wilson(81, 263);
  EXPECT_NEAR(a.low, 0.2553, 5e-5);
  EXPECT_NEAR(a.high, 0.3662, 5e-5);
  Estimate b = wilson(15, 148);
  EXPECT_NEAR(b.low, 0.0624, 5e-5);
  EXPECT_NEAR(b.high, 0.1605, 5e-5);
  Estimate c = wilson(0, 20);
  EXPECT_EQ(c.low, 0);
  EXPECT_NEAR(c.high, 0.1611, 5e-5);
}

TEST(MeanShare, IsWilsonsWhereResamplingShowsNothing) {
  auto share = [](std::vector<double> values) {
    Rng rng(1);
    return mean_share(values, rng);
  };
  const Estimate none = share(std::vector<double>(20, 0));
  EXPECT_EQ(none.mean, 0);
  EXPECT_EQ(share(std::vector<double>(12, 0)).low, 0);
  EXPECT_NEAR(none.high, 0.1611, 5e-5);
  const Estimate all = share(std::vector<double>(20, 1));
  EXPECT_NEAR(all.low, 1 - 0.1611, 5e-5);
  EXPECT_EQ(all.high, 1);
  const Estimate one = share({0});
  EXPECT_GT(one.high, 0.5) << "a single prompt says little";
  const Estimate halves = share({0.5, 0.5, 0.5});
  EXPECT_EQ(halves.mean, 0.5);
  EXPECT_LT(halves.low, 0.3);
  const Estimate mixed = share({0, 1, 1, 0, 0});
  EXPECT_EQ(mixed.low, wilson(2, 5).low);
}

TEST(MeanShare, IsTheBootstrapElsewhere) {
  const std::vector<double> values = {0, 0.25, 0.5, 1, 0.75, 0.25};
  Rng one(1), other(1);
  const Estimate share = mean_share(values, one), bootstrap = bootstrap_mean(values, other);
  EXPECT_EQ(share.low, bootstrap.low);
  EXPECT_EQ(share.high, bootstrap.high);
}

TEST(PassAtK, IsTheShareOfSubsetsWithASuccess) {
  EXPECT_DOUBLE_EQ(pass_at_k(4, 2, 1), 0.5);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 2, 2), 1 - 1.0 / 6);  // one of the six pairs has no success
  EXPECT_DOUBLE_EQ(pass_at_k(10, 3, 5), 1 - 21.0 / 252);
  EXPECT_EQ(pass_at_k(5, 0, 3), 0);
  EXPECT_EQ(pass_at_k(5, 3, 3), 1);
  EXPECT_NEAR(pass_at_k(100000, 1, 1), 1e-5, 1e-12);
}

TEST(BootstrapMean, CoversTheTruth) {
  Rng rng(3);
  int covered = 0;
  constexpr int kTrials = 200;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(60);
    for (double& value : values) value = 2 + rng.normal();
    Estimate estimate = bootstrap_mean(values, rng);
    EXPECT_LT(estimate.low, estimate.mean);
    EXPECT_GT(estimate.high, estimate.mean);
    covered += estimate.low <= 2 && 2 <= estimate.high;
  }
  // 95 % of 200 is 190; the percentile bootstrap of 60 values covers about 94 %. Five standard
  // errors: 17.
  EXPECT_GE(covered, 171);
}

TEST(BootstrapMean, OfOneValueIsThatValue) {
  Rng rng(0);
  Estimate estimate = bootstrap_mean(std::vector<double>{0.25}, rng);
  EXPECT_EQ(estimate.low, 0.25);
  EXPECT_EQ(estimate.high, 0.25);
}

}  // namespace
}  // namespace tailrace
