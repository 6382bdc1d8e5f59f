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

// The distributions of one row of a head.
struct Row {
  Distribution all, kept;  // `kept`: with probability 0 outside the set; all, without one
};

Row head_row(const LogprobHead& head, ConstMatrix weight, int64_t row) {
  std::vector<double> logits;
  for (int64_t o = 0; o < weight.rows; ++o) {
    double z = 0;
    for (int64_t i = 0; i < weight.cols; ++i)
      z += double{head.hidden.host().row(row)[i]} * weight.row(o)[i];
    logits.push_back(z);
  }
  const Distribution all = softmax(logits, head.inv_temperature);
  const auto set = head.kept.of(static_cast<size_t>(row));
  if (set.empty()) return {all, all};
  std::vector<double> masked(logits.size(), -std::numeric_limits<double>::infinity());
  for (int32_t id : set) masked[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
  return {all, softmax(masked, head.inv_temperature)};
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

void kept_log_sum_exp(ConstMatrix logits, const KeptSets& kept, float inv_temperature,
                      std::span<float> kept_lse) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    std::vector<double> members;
    for (int32_t id : kept.of(i)) members.push_back(logits.row(r)[id]);
    if (!members.empty()) kept_lse[i] = static_cast<float>(softmax(members, inv_temperature).lse);
  }
}

void linear_logprob(const LogprobHead& head, ConstMatrix weight, const LogprobRows& out) {
  for (int64_t r = 0; r < head.hidden.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const Row row = head_row(head, weight, r);
    out.logprob[i] = static_cast<float>(row.kept.log_p[static_cast<size_t>(head.targets[i])]);
    out.lse[i] = static_cast<float>(row.all.lse);
    if (!out.entropy.empty()) out.entropy[i] = static_cast<float>(row.all.entropy);
  }
}

void linear_logprob_backward(const LogprobHead& head, ConstMatrix weight,
                             const LogprobGradient& gradient) {
  const ConstMatrix hidden = head.hidden.host();
  const Matrix dhidden = gradient.dhidden.host(), dweight = gradient.dweight.host();
  std::vector<double> sums(static_cast<size_t>(dweight.rows * dweight.cols));
  for (int64_t r = 0; r < hidden.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const Row row = head_row(head, weight, r);
    std::vector<double> dx(static_cast<size_t>(hidden.cols));
    for (int64_t o = 0; o < weight.rows; ++o) {
      const double log_p = row.all.log_p[static_cast<size_t>(o)], p = std::exp(log_p);
      const double kept_p = std::exp(row.kept.log_p[static_cast<size_t>(o)]);
      // The log-probability is that within the kept set, so its gradient has the kept distribution;
      // the entropy is that of the whole one.
      double dz = gradient.dlogprob[i] * ((o == head.targets[i] ? 1.0 : 0.0) - kept_p);
      // dH / dz_o = -p_o (log p_o + H).
      if (!gradient.dentropy.empty() && p > 0)
        dz -= gradient.dentropy[i] * p * (log_p + row.all.entropy);
      dz *= head.inv_temperature;
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
