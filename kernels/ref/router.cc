#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {
namespace {

std::vector<double> softmax(const float* logits, int64_t count) {
  const double max = *std::max_element(logits, logits + count);
  std::vector<double> p;
  for (int64_t i = 0; i < count; ++i) p.push_back(std::exp(logits[i] - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

}  // namespace

void route(const Route& a) {
  const int64_t experts = a.logits.cols, k = a.weights.cols;
  for (int64_t t = 0; t < a.logits.rows; ++t) {
    const std::vector<double> p = softmax(a.logits.host().row(t), experts);
    std::vector<int32_t> ids(static_cast<size_t>(experts));
    std::iota(ids.begin(), ids.end(), 0);
    // The order is that of the float32 scores, for that is what is compared.
    const auto score = [&](int32_t e) {
      const auto i = static_cast<size_t>(e);
      return static_cast<float>(p[i]) + (a.choice_bias.empty() ? 0.0f : a.choice_bias[i]);
    };
    std::ranges::stable_sort(ids, [&](int32_t x, int32_t y) { return score(x) > score(y); });
    // Ascending, so that the sum over experts has one order whatever their scores.
    std::sort(ids.begin(), ids.begin() + k);
    if (a.given.rows > 0 && a.given.row(t)[0] != kChoose)
      std::copy_n(a.given.row(t), k, ids.begin());
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += p[static_cast<size_t>(ids[static_cast<size_t>(j)])];
    sum = a.normalised ? std::max(sum, double{FLT_MIN}) : 1;
    for (int64_t j = 0; j < k; ++j) {
      const int32_t id = ids[static_cast<size_t>(j)];
      a.chosen[static_cast<size_t>(t * k + j)] = id;
      a.weights.host().row(t)[j] = static_cast<float>(p[static_cast<size_t>(id)] / sum);
    }
    for (int64_t e = 0; e < experts; ++e)
      a.probabilities.host().row(t)[e] = static_cast<float>(p[static_cast<size_t>(e)]);
  }
}

void route_backward(const RouteBackward& a) {
  const int64_t experts = a.probabilities.cols, k = a.dweights.cols;
  for (int64_t t = 0; t < a.probabilities.rows; ++t) {
    const auto p = [&](int64_t e) { return double{a.probabilities.host().row(t)[e]}; };
    const auto id = [&](int64_t j) { return a.chosen[static_cast<size_t>(t * k + j)]; };
    // By the whole Jacobian, w_j = p_j / s: dw_j / dp_i = (i == j) / s - p_j / s^2.
    double s = 0;
    for (int64_t j = 0; j < k; ++j) s += p(id(j));
    // Below the least sum that the forward pass divides by, it divides by a constant: w_j = p_j /
    // s.
    const bool varies = s >= double{FLT_MIN};
    s = std::max(s, double{FLT_MIN});
    std::vector<double> dp(static_cast<size_t>(experts));
    for (int64_t row = 0; row < a.balance.rows; ++row) {
      if (t < a.sequence_offsets[static_cast<size_t>(row)] ||
          t >= a.sequence_offsets[static_cast<size_t>(row) + 1])
        continue;
      for (int64_t e = 0; e < experts; ++e)
        dp[static_cast<size_t>(e)] = a.balance.host().row(row)[e];
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const double slope = a.normalised ? (i == j ? 1 : 0) / s - (varies ? p(id(j)) / s / s : 0)
                                          : (i == j ? 1 : 0);
        dp[static_cast<size_t>(id(i))] += slope * a.dweights.host().row(t)[j];
      }
    }
    std::vector<double> dlogits(static_cast<size_t>(experts));
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t f = 0; f < experts; ++f)
        dlogits[static_cast<size_t>(e)] +=
            dp[static_cast<size_t>(f)] * p(f) * ((e == f ? 1 : 0) - p(e));
    }
    for (int64_t e = 0; e < experts; ++e)
      a.dlogits.host().row(t)[e] = static_cast<float>(dlogits[static_cast<size_t>(e)]);
  }
}

void group_by_expert(const ExpertGroups& a) {
  int32_t row = 0;
  for (size_t e = 0; e + 1 < a.offsets.size(); ++e) {
    a.offsets[e] = row;
    for (size_t c = 0; c < a.chosen.size(); ++c) {
      if (a.chosen[c] != static_cast<int32_t>(e)) continue;
      a.tokens[static_cast<size_t>(row)] =
          static_cast<int32_t>(static_cast<int64_t>(c) / a.experts_per_token);
      a.rows[c] = row++;
    }
  }
  a.offsets.back() = row;
}

void expert_balance(const ExpertBalance& a) {
  const int64_t experts = a.probabilities.cols;
  for (size_t s = 0; s + 1 < a.sequence_offsets.size(); ++s) {
    const int64_t begin = a.sequence_offsets[s], end = a.sequence_offsets[s + 1];
    if (begin == end) continue;
    const auto tokens = static_cast<double>(end - begin);
    const int64_t k = std::ssize(a.chosen) / a.probabilities.rows;
    for (int64_t e = 0; e < experts; ++e) {
      int64_t choices = 0;
      double mean = 0;
      for (int64_t c = begin * k; c < end * k; ++c)
        choices += a.chosen[static_cast<size_t>(c)] == e;
      for (int64_t t = begin; t < end; ++t) mean += a.probabilities.host().row(t)[e] / tokens;
      const double share = static_cast<double>(choices) / tokens;
      a.choices[static_cast<size_t>(e)] += choices;
      a.losses[static_cast<size_t>(e)] += tokens * static_cast<double>(experts) * share * mean;
      if (a.gradient.rows > 0)
        a.gradient.host().row(static_cast<int64_t>(s))[e] =
            static_cast<float>(a.scale * static_cast<double>(experts) * share);
    }
  }
}

}  // namespace tailrace::ref
