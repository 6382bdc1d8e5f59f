#include "cli/plan/fit.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr int kTerms = 3;
using Terms = std::array<double, kTerms>;

// Divided by the seconds: each point counts by its relative error.
Terms terms_of(const DecodePoint& point) {
  return {1 / point.seconds, point.batch / point.seconds, point.context / point.seconds};
}

// The least squares over the terms in `used`, by Gauss-Jordan on the normal equations; false: they
// do not decide.
bool solve(std::span<const DecodePoint> points, unsigned used, Terms& result) {
  std::array<std::array<double, kTerms + 1>, kTerms> rows{};
  for (const DecodePoint& point : points) {
    const Terms terms = terms_of(point);
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) rows[i][j] += terms[i] * terms[j];
      rows[i][kTerms] += terms[i];
    }
  }
  for (int i = 0; i < kTerms; ++i) {
    // A term that is left out has the equation x = 0, so that the elimination below need not know
    // of it.
    if ((used >> i & 1) != 0) continue;
    for (int j = 0; j < kTerms; ++j) rows[i][j] = rows[j][i] = 0;
    rows[i][i] = 1, rows[i][kTerms] = 0;
  }
  for (int i = 0; i < kTerms; ++i) {
    // Against the diagonal as it was: columns that are nearly alike leave a rest of rounding, by
    // which nothing may be divided.
    const double scale = rows[i][i];
    int pivot = i;
    for (int j = i; j < kTerms; ++j)
      if (std::abs(rows[j][i]) > std::abs(rows[pivot][i])) pivot = j;
    std::swap(rows[i], rows[pivot]);
    if (std::abs(rows[i][i]) <= 1e-9 * std::abs(scale) || rows[i][i] == 0) return false;
    for (int j = 0; j < kTerms; ++j) {
      if (j == i) continue;
      const double factor = rows[j][i] / rows[i][i];
      for (int k = i; k <= kTerms; ++k) rows[j][k] -= factor * rows[i][k];
    }
  }
  for (int i = 0; i < kTerms; ++i) result[i] = rows[i][kTerms] / rows[i][i];
  return true;
}

}  // namespace

simulator::DecodeModel fit_decode(std::span<const DecodePoint> points) {
  TR_CHECK(!points.empty());
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  // With three terms all subsets are few: the best one without a negative coefficient.
  for (unsigned used = 1; used < 1u << kTerms; ++used) {
    Terms terms{};
    if (!solve(points, used, terms)) continue;
    if (terms[0] < 0 || terms[1] < 0 || terms[2] < 0) continue;
    double squares = 0;
    for (const DecodePoint& point : points) {
      const Terms of = terms_of(point);
      const double error = of[0] * terms[0] + of[1] * terms[1] + of[2] * terms[2] - 1;
      squares += error * error;
    }
    if (squares < least) least = squares, best = terms;
  }
  return {.step = best[0], .sequence = best[1], .context = best[2]};
}

}  // namespace tailrace
