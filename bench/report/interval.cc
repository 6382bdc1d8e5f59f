#include "bench/report/interval.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/check.h"

namespace tailrace {

// Abramowitz and Stegun, 26.7.3 and 26.7.4: a finite sum for whole degrees of freedom, whose terms
// are (1/2)(3/4).. cos^2k for an even and (2/3)(4/5).. cos^(2k+1) for an odd number.
double student_within(double t, int64_t freedom) {
  TR_CHECK(t >= 0 && freedom >= 1, "t {}, {} degrees of freedom", t, freedom);
  const double angle = std::atan(t / std::sqrt(static_cast<double>(freedom)));
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const bool even = freedom % 2 == 0;
  double sum = 0, term = even ? 1 : cosine;
  for (int64_t k = even ? 0 : 1; k <= freedom - 2; k += 2) {
    sum += term;
    term *= cosine * cosine * static_cast<double>(k + 1) / static_cast<double>(k + 2);
  }
  return even ? sine * sum : 2 / std::numbers::pi * (angle + sine * sum);
}

double student_quantile(double share, int64_t freedom) {
  TR_CHECK(share > 0 && share < 1, "a share of {}", share);
  double low = 0, high = 1;
  while (student_within(high, freedom) < share) high *= 2;
  // Halved until no double lies between.
  for (double middle = high / 2; middle != low && middle != high; middle = (low + high) / 2)
    (student_within(middle, freedom) < share ? low : high) = middle;
  return high;
}

Interval mean_interval(std::span<const double> values) {
  TR_CHECK(values.size() >= 2, "an interval of {} values", values.size());
  const auto n = static_cast<int64_t>(values.size());
  double sum = 0, squares = 0;
  for (double value : values) sum += value;
  const double mean = sum / static_cast<double>(n);
  for (double value : values) squares += (value - mean) * (value - mean);
  const double error = std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n));
  const double half = student_quantile(0.95, n - 1) * error;
  return {.mean = mean, .low = mean - half, .high = mean + half, .runs = n};
}

Interval paired_interval(std::span<const double> values, std::span<const double> baseline) {
  TR_CHECK(values.size() == baseline.size(), "{} values, {} of the baseline", values.size(),
           baseline.size());
  std::vector<double> differences;
  for (size_t i = 0; i < values.size(); ++i) differences.push_back(values[i] - baseline[i]);
  return mean_interval(differences);
}

Verdict verdict(const Interval& difference, double margin) {
  if (difference.low >= -margin && difference.high <= margin) return Verdict::kWithin;
  if (difference.high < 0) return Verdict::kLower;
  if (difference.low > 0) return Verdict::kHigher;
  return Verdict::kUndecided;
}

std::optional<int64_t> runs_needed(const Interval& difference, double margin) {
  if (verdict(difference, margin) != Verdict::kUndecided) return {};
  const int64_t runs = difference.runs;
  // Standard deviation of one.
  const double deviation = (difference.high - difference.mean) / student_quantile(0.95, runs - 1) *
                           std::sqrt(static_cast<double>(runs));
  for (int64_t n = runs + 1; n <= 1000; ++n) {
    const double half =
        student_quantile(0.95, n - 1) * deviation / std::sqrt(static_cast<double>(n));
    const Interval narrower{.mean = difference.mean,
                            .low = difference.mean - half,
                            .high = difference.mean + half,
                            .runs = n};
    if (verdict(narrower, margin) != Verdict::kUndecided) return n;
  }
  return {};
}

std::string describe(Verdict verdict, double margin, const std::string& baseline) {
  switch (verdict) {
    case Verdict::kWithin:
      return fmt::format("within {} of {}", margin, baseline);
    case Verdict::kLower:
      return fmt::format("lower than {}", baseline);
    case Verdict::kHigher:
      return fmt::format("higher than {}", baseline);
    case Verdict::kUndecided:
      return fmt::format("undecided: it may be more than {} from {}, and may be equal", margin,
                         baseline);
  }
  TR_CHECK(false, "verdict {}", static_cast<int>(verdict));
  return {};
}

}  // namespace tailrace
