#include "kernels/ops/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

namespace {

using Doubles = std::vector<std::vector<double>>;

Doubles product(const Doubles& left, const Doubles& right) {
  Doubles result(left.size(), std::vector<double>(right[0].size()));
  for (size_t i = 0; i < left.size(); ++i)
    for (size_t k = 0; k < right.size(); ++k)
      for (size_t j = 0; j < right[0].size(); ++j) result[i][j] += left[i][k] * right[k][j];
  return result;
}

Doubles transpose(const Doubles& x) {
  Doubles result(x[0].size(), std::vector<double>(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < x[0].size(); ++j) result[j][i] = x[i][j];
  return result;
}

}  // namespace

void muon(const Muon& args) {
  const auto& [states, constants, parameters, gradients, momentum] = args;
  const UpdateState& state = states[0];
  if (state.skips || parameters.rows == 0 || parameters.cols == 0) return;
  const auto rows = static_cast<size_t>(parameters.rows),
             cols = static_cast<size_t>(parameters.cols);
  const double mu = constants.momentum, lr = state.lr;
  Doubles x(rows, std::vector<double>(cols));
  double squares = 0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const auto row = static_cast<int64_t>(r);
      const double g = double{gradients.row(row)[c]} * state.grad_scale;
      const double b = mu * momentum.row(row)[c] + g;
      momentum.row(row)[c] = static_cast<float>(b);
      // Nesterov's form, as in Keller Jordan's Muon (2024).
      x[r][c] = g + mu * b;
      squares += x[r][c] * x[r][c];
    }
  }
  // By the Frobenius norm, which bounds the largest singular value: the iteration below converges
  // from values up to 1.
  for (auto& row : x)
    for (double& value : row) value /= std::sqrt(squares) + 1e-7;
  // X^T (X X^T) = (X^T X) X^T: the side that is turned changes the result by rounding alone, and
  // the smaller one is less work.
  if (rows > cols) x = transpose(x);
  for (int i = 0; i < 5; ++i) {
    // Newton-Schulz with Muon's coefficients: five steps bring singular values to about 1, not
    // exactly.
    const Doubles a = product(x, transpose(x)), aa = product(a, a);
    const Doubles ax = product(a, x), aax = product(aa, x);
    for (size_t r = 0; r < x.size(); ++r)
      for (size_t c = 0; c < x[0].size(); ++c)
        x[r][c] = 3.4445 * x[r][c] - 4.775 * ax[r][c] + 2.0315 * aax[r][c];
  }
  if (rows > cols) x = transpose(x);
  // The root mean square of AdamW's updates is about 0.2 (Liu et al. 2025): so one learning rate
  // does for both.
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      float& p = parameters.row(static_cast<int64_t>(r))[c];
      const double decayed = double{p} - lr * constants.weight_decay * double{p};
      p = static_cast<float>(decayed - lr * scale * x[r][c]);
    }
  }
}

}  // namespace tailrace::ref
