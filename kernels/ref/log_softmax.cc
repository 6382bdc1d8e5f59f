#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

namespace {

struct Distribution {
  std::vector<double> log_p;
  double lse = 0;
  double entropy = 0;
};

Distribution softmax(const std::vector<double>& logits, double inv_temperature) {
  Distribution d;
  double max = -std::numeric_limits<double>::infinity();
  for (double z : logits) max = std::max(max, z * inv_temperature);
  double sum = 0;
  for (double z : logits) sum += std::exp(z * inv_temperature - max);
  d.lse = max + std::log(sum);
  for (double z : logits) {
    d.log_p.push_back(z * inv_temperature - d.lse);
    const double p = std::exp(d.log_p.back());
    // p log p goes to 0 with p; in floating point it would be 0 * -inf.
    if (p > 0) d.entropy -= p * d.log_p.back();
  }
  return d;
}

Distribution head(ConstMatrix hidden, ConstMatrix weight, int64_t row, double inv_temperature) {
  std::vector<double> logits;
  for (int64_t o = 0; o < weight.rows; ++o) {
    double z = 0;
    for (int64_t i = 0; i < weight.cols; ++i) z += double{hidden.row(row)[i]} * weight.row(o)[i];
    logits.push_back(z);
  }
  return softmax(logits, inv_temperature);
}

}  // namespace

void log_sum_exp(ConstMatrix logits, float inv_temperature, std::span<float> lse,
                 std::span<float> entropy) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    auto d =
        softmax(std::vector<double>(logits.row(r), logits.row(r) + logits.cols), inv_temperature);
    lse[static_cast<size_t>(r)] = static_cast<float>(d.lse);
    if (!entropy.empty()) entropy[static_cast<size_t>(r)] = static_cast<float>(d.entropy);
  }
}

void linear_logprob(ConstMatrix hidden, ConstMatrix weight, std::span<const int32_t> targets,
                    float inv_temperature, std::span<float> logprob, std::span<float> lse,
                    std::span<float> entropy) {
  for (int64_t r = 0; r < hidden.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    auto d = head(hidden, weight, r, inv_temperature);
    logprob[i] = static_cast<float>(d.log_p[static_cast<size_t>(targets[i])]);
    lse[i] = static_cast<float>(d.lse);
    if (!entropy.empty()) entropy[i] = static_cast<float>(d.entropy);
  }
}

void linear_logprob_backward(ConstMatrix hidden, ConstMatrix weight,
                             std::span<const int32_t> targets, float inv_temperature,
                             std::span<const float> dlogprob, std::span<const float> dentropy,
                             Matrix dhidden, Matrix dweight) {
  std::vector<double> sums(static_cast<size_t>(dweight.rows * dweight.cols));
  for (int64_t r = 0; r < hidden.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    auto d = head(hidden, weight, r, inv_temperature);
    std::vector<double> dx(static_cast<size_t>(hidden.cols));
    for (int64_t o = 0; o < weight.rows; ++o) {
      const double log_p = d.log_p[static_cast<size_t>(o)], p = std::exp(log_p);
      double dz = dlogprob[i] * ((o == targets[i] ? 1.0 : 0.0) - p);
      // dH / dz_o = -p_o (log p_o + H).
      if (!dentropy.empty() && p > 0) dz -= dentropy[i] * p * (log_p + d.entropy);
      dz *= inv_temperature;
      for (int64_t c = 0; c < hidden.cols; ++c) {
        dx[static_cast<size_t>(c)] += dz * weight.row(o)[c];
        sums[static_cast<size_t>(o * dweight.cols + c)] += dz * hidden.row(r)[c];
      }
    }
    for (int64_t c = 0; c < hidden.cols; ++c) {
      dhidden.row(r)[c] = static_cast<float>(dx[static_cast<size_t>(c)]);
    }
  }
  for (int64_t o = 0; o < dweight.rows; ++o) {
    for (int64_t c = 0; c < dweight.cols; ++c) {
      float& out = dweight.row(o)[c];
      out = static_cast<float>(out + sums[static_cast<size_t>(o * dweight.cols + c)]);
    }
  }
}

}  // namespace tailrace::ref
