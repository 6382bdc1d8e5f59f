#include "bench/report/interval.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// Tables of the two-sided 95 % points, to their three digits.
TEST(Student, HasTheQuantilesOfTheTables) {
  EXPECT_NEAR(student_quantile(0.95, 1), 12.706, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 2), 4.303, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 3), 3.182, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 9), 2.262, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 10), 2.228, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 120), 1.980, 5e-4);
  EXPECT_NEAR(student_quantile(0.99, 4), 4.604, 5e-4);
}

TEST(Student, SpreadsAroundZeroAsItsClosedFormsSay) {
  EXPECT_EQ(student_within(0, 5), 0);
  EXPECT_NEAR(student_within(1, 1), 0.5, 1e-15);                 // Cauchy: 2 atan(1) / pi
  EXPECT_NEAR(student_within(2, 2), 2 / std::sqrt(6.0), 1e-15);  // t / sqrt(2 + t^2)
  EXPECT_NEAR(student_within(1.96, 100000), 0.95, 1e-4);         // the normal distribution
}

// R: t.test(c(0.9, 0.94, 0.97, 0.91, 0.95))
TEST(MeanInterval, IsThatOfOneSample) {
  const Interval interval = mean_interval(std::vector{0.90, 0.94, 0.97, 0.91, 0.95});
  EXPECT_NEAR(interval.mean, 0.934, 1e-12);
  // Deviation 0.0288097 over sqrt(5), times 2.776445.
  EXPECT_NEAR(interval.low, 0.934 - 0.0357721, 1e-6);
  EXPECT_NEAR(interval.high, 0.934 + 0.0357721, 1e-6);
  EXPECT_EQ(interval.runs, 5);
}

TEST(MeanInterval, HasNoWidthWhereAllRunsAgree) {
  const Interval interval = mean_interval(std::vector{0.5, 0.5, 0.5});
  EXPECT_EQ(interval.low, 0.5);
  EXPECT_EQ(interval.high, 0.5);
}

TEST(MeanIntervalDeathTest, OfOneRun) {
  EXPECT_DEATH(mean_interval(std::vector{1.0}), "an interval of 1 values");
}

// Seeds differ by far more than the two ways of working do: only in pairs does that show.
TEST(PairedInterval, IsNotWidenedByWhatASeedDoesToBoth) {
  const std::vector baseline{0.1, 0.5, 0.9}, values{0.13, 0.52, 0.91};
  const Interval paired = paired_interval(values, baseline);
  EXPECT_NEAR(paired.mean, 0.02, 1e-12);
  // Deviation 0.01 over sqrt(3), times 4.302653.
  EXPECT_NEAR(paired.high - paired.mean, 0.0248414, 1e-6);
  EXPECT_GT(mean_interval(values).high - mean_interval(values).mean, 0.9);
}

TEST(PairedIntervalDeathTest, OfOtherSeeds) {
  EXPECT_DEATH(paired_interval(std::vector{1.0, 2.0}, std::vector{1.0, 2.0, 3.0}),
               "2 values, 3 of the baseline");
}

Verdict of(double low, double high) {
  return verdict({.mean = (low + high) / 2, .low = low, .high = high, .runs = 10}, 0.05);
}

TEST(Verdict, IsWithinOnlyWhereTheWholeIntervalIs) {
  EXPECT_EQ(of(-0.02, 0.03), Verdict::kWithin);
  EXPECT_EQ(of(-0.03, -0.01), Verdict::kWithin);  // lower for sure, and too little to matter
  EXPECT_EQ(of(-0.05, 0.05), Verdict::kWithin);
  EXPECT_EQ(of(-0.06, 0.05), Verdict::kUndecided);  // holds 0, and shows nothing
  EXPECT_EQ(of(-0.3, 0.3), Verdict::kUndecided);
  EXPECT_EQ(of(-0.06, -0.01), Verdict::kLower);
  EXPECT_EQ(of(-0.3, -0.1), Verdict::kLower);
  EXPECT_EQ(of(0.01, 0.06), Verdict::kHigher);
}

// Four differences of mean -0.1 and deviation 0.1: an interval of half width 3.18 * 0.1 / 2 = 0.159
// holds 0. With n of them it is t * 0.1 / sqrt(n), which is below 0.1 from n = 7 on (t = 2.447).
TEST(Verdict, SaysHowManyRunsItWouldTake) {
  const Interval four{.mean = -0.1, .low = -0.2591, .high = 0.0591, .runs = 4};
  EXPECT_EQ(runs_needed(four, 0.05), 7);
  EXPECT_EQ(runs_needed({.mean = -0.1, .low = -0.15, .high = -0.05, .runs = 4}, 0.05),
            std::nullopt);
  // Too much spread for a thousand.
  EXPECT_EQ(runs_needed({.mean = 0, .low = -20, .high = 20, .runs = 2}, 0.05), std::nullopt);
}

TEST(Verdict, ReadsAsASentence) {
  EXPECT_EQ(describe(Verdict::kWithin, 0.05, "sync"), "within 0.05 of sync");
  EXPECT_EQ(describe(Verdict::kLower, 0.05, "sync"), "lower than sync");
  EXPECT_EQ(describe(Verdict::kHigher, 0.05, "sync"), "higher than sync");
  EXPECT_EQ(describe(Verdict::kUndecided, 0.05, "sync"),
            "undecided: it may be more than 0.05 from sync, and may be equal");
}

}  // namespace
}  // namespace tailrace
