// Muon: an update of one matrix against its reference, and what it is for: singular values that are
// all about the same.
#include "kernels/ops/muon.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using op_testing::expect_close;
using op_testing::expect_same_bits;
using op_testing::GuardedMatrix;
using op_testing::Rng;
using op_testing::TestStream;

struct Update {
  GuardedMatrix parameters, gradients, momentum;
  UpdateState state{.updates = 3, .lr = 1e-2f, .grad_scale = 0.5f};

  Update(int64_t rows, int64_t cols, Rng& rng)
      : parameters(rows, cols, rng), gradients(rows, cols, rng), momentum(rows, cols, rng) {}
  Muon args() {
    return {.state = {&state, 1},
            .constants = {.momentum = 0.9f, .weight_decay = 0.1f},
            .parameters = parameters.view(),
            .gradients = std::as_const(gradients).view(),
            .momentum = momentum.view()};
  }
  void run(const Stream& stream) {
    Buffer memory(muon_workspace_bytes(parameters.rows(), parameters.cols()));
    Workspace workspace(memory);
    muon(stream, workspace, args());
    EXPECT_EQ(workspace.peak(), state.skips ? 0 : memory.size());
    EXPECT_EQ(workspace.used(), 0u);
  }
};

// Singular values, the largest first: one-sided Jacobi, whose rotations make the columns orthogonal
// until their lengths are what is wanted. `x` [n][m], n vectors of m numbers.
std::vector<double> singular_values(std::vector<std::vector<double>> x) {
  const auto dot = [&](size_t p, size_t q) {
    double sum = 0;
    for (size_t i = 0; i < x[p].size(); ++i) sum += x[p][i] * x[q][i];
    return sum;
  };
  for (int sweep = 0; sweep < 60; ++sweep) {
    double largest = 0;
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t q = p + 1; q < x.size(); ++q) {
        const double pp = dot(p, p), qq = dot(q, q), pq = dot(p, q);
        if (pq == 0) continue;
        largest = std::max(largest, std::abs(pq) / std::sqrt(pp * qq));
        const double theta = (qq - pp) / (2 * pq);
        const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(1 + theta * theta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (size_t i = 0; i < x[p].size(); ++i) {
          const double a = x[p][i], b = x[q][i];
          x[p][i] = c * a - s * b;
          x[q][i] = s * a + c * b;
        }
      }
    }
    if (largest < 1e-12) break;
  }
  std::vector<double> values;
  for (size_t p = 0; p < x.size(); ++p) values.push_back(std::sqrt(dot(p, p)));
  std::ranges::sort(values, std::greater<>());
  return values;
}

constexpr std::pair<int64_t, int64_t> kMuonShapes[] = {
    {1, 1}, {1, 40}, {40, 1}, {3, 5}, {16, 16}, {33, 7}, {31, 65}, {130, 50}, {64, 200}};

TEST(Muon, AgreesWithTheReferenceForEveryShapeAndThreadCount) {
  Rng rng(20);
  for (const auto& [rows, cols] : kMuonShapes) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
    Update want(rows, cols, rng), got = want, shared = want;
    ref::muon(want.args());
    got.run({});
    // Two products and sums of numbers of about 1.
    expect_close(got.momentum.view(), want.momentum.view(),
                 4 * op_testing::kUnit * (1 + want.momentum.max_magnitude()), "momentum");
    // Each of the five iterations multiplies a relative error by 3.4445 at most, where a singular
    // value is small, which is 485 in all; a sum of n terms is wrong by about sqrt(n) units. The
    // update is 0.2 * sqrt(larger side) * lr times elements of at most 1.2.
    const auto side = static_cast<double>(std::max(rows, cols));
    const double update = 0.2 * std::sqrt(side) * 1e-2 * 1.2;
    expect_close(
        got.parameters.view(), want.parameters.view(),
        op_testing::kUnit * (8 * want.parameters.max_magnitude() + 485 * std::sqrt(side) * update),
        "parameters");
    got.parameters.expect_canaries();
    got.momentum.expect_canaries();
    for (const int threads : {2, 3, 4}) {
      Update same = shared;
      TestStream stream(threads);
      same.run(stream.get());
      expect_same_bits(same.parameters.view(), got.parameters.view(), "parameters");
      expect_same_bits(same.momentum.view(), got.momentum.view(), "momentum");
    }
  }
}

// Also of matrices whose singular values are a thousand apart to begin with.
TEST(Muon, SingularValuesOfAnUpdateAreAboutOne) {
  Rng rng(21);
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{12, 12}, {8, 40}, {40, 8}, {64, 96}, {96, 64}}) {
    for (const bool skewed : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
      Update update(rows, cols, rng);
      update.parameters.fill(0);
      update.momentum.fill(0);
      if (skewed) {
        // Rows (or columns) of ever smaller length, down to a hundredth.
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c)
            update.gradients.at(r, c) *=
                std::pow(0.01f, static_cast<float>(rows < cols ? r : c) /
                                    static_cast<float>(std::min(rows, cols)));
      }
      update.run({});
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))) * 1e-2f;
      std::vector<std::vector<double>> x;
      for (int64_t i = 0; i < std::min(rows, cols); ++i) {
        std::vector<double>& vector = x.emplace_back();
        for (int64_t j = 0; j < std::max(rows, cols); ++j)
          vector.push_back((rows < cols ? update.parameters.at(i, j) : update.parameters.at(j, i)) /
                           -scale);
      }
      const std::vector<double> values = singular_values(x);
      EXPECT_LT(values.front(), 1.21);
      if (rows != cols) {
        EXPECT_GT(values.back(), 0.67);
      } else {
        // A square random matrix has a singular value near 0, which five iterations do not lift.
        EXPECT_GT(values[values.size() * 3 / 4], 0.67);
      }
      // The root mean square is that of a step of AdamW, about 0.2 lr (of a matrix of full rank).
      double squares = 0;
      for (const double value : values) squares += value * value;
      const double rms = scale * std::sqrt(squares / static_cast<double>(rows * cols)) / 1e-2;
      EXPECT_NEAR(rms, 0.2, 0.05);
    }
  }
}

TEST(Muon, AnUpdateThatSkipsOrHasNoGradientAddsNothing) {
  Rng rng(22);
  Update update(9, 14, rng);
  const Update before = update;
  update.state.skips = true;
  update.run({});
  expect_same_bits(update.parameters.view(), before.parameters.view(), "parameters");
  expect_same_bits(update.momentum.view(), before.momentum.view(), "momentum");
  // Without a gradient, and without momentum, there is the decay alone.
  update.state.skips = false;
  update.gradients.fill(0);
  update.momentum.fill(0);
  update.run({});
  for (int64_t r = 0; r < 9; ++r)
    for (int64_t c = 0; c < 14; ++c)
      EXPECT_NEAR(update.parameters.at(r, c), before.parameters.at(r, c) * (1 - 1e-2 * 0.1), 1e-6);
}

}  // namespace
}  // namespace tailrace
