#include "kernels/ops/router.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

// A token costs about k passes over its experts.
int64_t grain_tokens(int64_t experts, int64_t k) {
  return std::max<int64_t>(1, 32 * 1024 / std::max<int64_t>(experts * k, 1));
}

void softmax(const float* logits, int64_t count, float* out) {
  const Vec16 lowest = simd::broadcast(-std::numeric_limits<float>::infinity());
  Vec16 top = lowest, sum = simd::zero();
  for (int64_t i = 0; i < count; i += kLanes)
    top = simd::max(top, simd::select_first(count - i, simd::load(logits + i, count - i), lowest));
  const Vec16 max = simd::broadcast(simd::reduce_max(top));
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    // Lanes behind the row are -inf, whose exp is 0.
    const Vec16 logit = simd::select_first(left, simd::load(logits + i, left), lowest);
    const Vec16 e = simd::exp(simd::sub(logit, max));
    sum = simd::add(sum, e);
    simd::store(out + i, e, left);
  }
  const Vec16 total = simd::broadcast(simd::reduce_add(sum));
  for (int64_t i = 0; i < count; i += kLanes)
    simd::store(out + i, simd::div(simd::load(out + i, count - i), total), count - i);
}

// k distinct ids, whatever the scores are: NaN is larger than nothing.
void choose(const float* probabilities, std::span<const float> bias, int64_t experts,
            std::span<int32_t> chosen) {
  std::array<float, kMaxExperts> scores;
  // Flags, and no score of -inf for what is taken: a score may be NaN or -inf by itself, and no
  // expert may be chosen twice.
  std::array<bool, kMaxExperts> taken;
  for (int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<size_t>(e);
    scores[i] = bias.empty() ? probabilities[e] : probabilities[e] + bias[i];
    taken[i] = false;
  }
  for (size_t j = 0; j < chosen.size(); ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      const auto i = static_cast<size_t>(e);
      if (taken[i]) continue;
      if (best < 0 || scores[i] > scores[static_cast<size_t>(best)]) best = e;
    }
    taken[static_cast<size_t>(best)] = true;
  }
  auto out = chosen.begin();
  for (int64_t e = 0; e < experts; ++e)
    if (taken[static_cast<size_t>(e)]) *out++ = static_cast<int32_t>(e);
}

// The caller that gives choices has checked those from outside; here a bad id is our bug, and would
// read behind the row.
void take_given(const int32_t* given, int64_t experts, std::span<int32_t> chosen) {
  int32_t last = -1;
  for (size_t j = 0; j < chosen.size(); ++j) {
    chosen[j] = given[j];
    TR_CHECK(chosen[j] > last && chosen[j] < experts, "expert {} after {} of {}", chosen[j], last,
             experts);
    last = chosen[j];
  }
}

float sum_of_chosen(const float* probabilities, std::span<const int32_t> chosen) {
  float sum = 0;
  for (const int32_t e : chosen) sum += probabilities[e];
  return std::max(sum, std::numeric_limits<float>::min());
}

void check_choices(ConstMatrix probabilities, std::span<const int32_t> chosen, int64_t k) {
  TR_CHECK(probabilities.cols <= kMaxExperts && k >= 1 && k <= probabilities.cols,
           "{} of {} experts", k, probabilities.cols);
  TR_CHECK(std::ssize(chosen) == probabilities.rows * k, "{} choices of {} tokens", chosen.size(),
           probabilities.rows);
}

}  // namespace

void route(const Stream& stream, const Route& a) {
  const ConstMatrix logits = a.logits.host();
  const Matrix probabilities = a.probabilities.host();
  const Matrix weights = a.weights.host();
  const int64_t tokens = logits.rows, experts = logits.cols, k = weights.cols;
  TR_CHECK(probabilities.rows == tokens && probabilities.cols == experts &&
               weights.rows == tokens &&
               (a.choice_bias.empty() || std::ssize(a.choice_bias) == experts) &&
               (a.given.rows == 0 || (a.given.rows == tokens && a.given.cols == k)),
           "logits [{}, {}], probabilities [{}, {}], weights [{}, {}], {} biases, given [{}, {}]",
           tokens, experts, probabilities.rows, probabilities.cols, weights.rows, k,
           a.choice_bias.size(), a.given.rows, a.given.cols);
  check_choices(probabilities, a.chosen, k);
  parallel_for(stream, tokens, grain_tokens(experts, k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* p = probabilities.row(t);
      softmax(logits.row(t), experts, p);
      const auto chosen = a.chosen.subspan(static_cast<size_t>(t * k), static_cast<size_t>(k));
      if (a.given.rows > 0 && a.given.row(t)[0] != kChoose) {
        take_given(a.given.row(t), experts, chosen);
      } else {
        choose(p, a.choice_bias, experts, chosen);
      }
      const float sum = a.normalised ? sum_of_chosen(p, chosen) : 1;
      for (int64_t j = 0; j < k; ++j) weights.row(t)[j] = p[chosen[static_cast<size_t>(j)]] / sum;
    }
  });
}

void route_backward(const Stream& stream, const RouteBackward& a) {
  const ConstMatrix probabilities = a.probabilities.host();
  const ConstMatrix to_weights = a.dweights.host();
  const ConstMatrix balance = a.balance.host();
  const Matrix dlogits = a.dlogits.host();
  const int64_t tokens = probabilities.rows, experts = probabilities.cols;
  const int64_t k = to_weights.cols;
  TR_CHECK(dlogits.rows == tokens && dlogits.cols == experts && to_weights.rows == tokens);
  check_choices(probabilities, a.chosen, k);
  const bool balances = balance.rows > 0;
  TR_CHECK(!balances ||
           (balance.cols == experts && std::ssize(a.sequence_offsets) == balance.rows + 1 &&
            a.sequence_offsets.back() == tokens));
  parallel_for(stream, tokens, grain_tokens(experts, k), [&](int64_t begin, int64_t end) {
    std::array<float, kMaxExperts> gradient;  // of the balance, to the probabilities of a token
    std::array<float, kMaxExperts> slopes;    // of the weights, to the logits of the chosen
    int64_t sequence = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (balances) {
        while (a.sequence_offsets[static_cast<size_t>(sequence) + 1] <= t) ++sequence;
        std::copy_n(balance.row(sequence), experts, gradient.data());
      } else {
        std::fill_n(gradient.data(), experts, 0.0f);
      }
      const float* p = probabilities.row(t);
      const float* dweights = to_weights.row(t);
      const auto chosen = a.chosen.subspan(static_cast<size_t>(t * k), static_cast<size_t>(k));
      // w = p / s over the chosen, so p dp = w (dw - sum of dw w): no division of a gradient by an
      // s that may be next to 0. At its least s is a constant, and the mean has no part.
      const float sum = a.normalised ? sum_of_chosen(p, chosen) : 1;
      const auto weight = [&](int64_t j) { return p[chosen[static_cast<size_t>(j)]] / sum; };
      float mean = 0;
      if (a.normalised && sum > std::numeric_limits<float>::min())
        for (int64_t j = 0; j < k; ++j) mean += dweights[j] * weight(j);
      float of_chosen = 0;
      for (int64_t j = 0; j < k; ++j)
        of_chosen += slopes[static_cast<size_t>(j)] = weight(j) * (dweights[j] - mean);
      // The softmax: dl = p dp - p (sum of p dp).
      Vec16 lanes = simd::zero();
      for (int64_t i = 0; i < experts; i += kLanes)
        lanes = simd::fma(simd::load(p + i, experts - i),
                          simd::load(gradient.data() + i, experts - i), lanes);
      const Vec16 dot = simd::broadcast(simd::reduce_add(lanes) + of_chosen);
      float* out = dlogits.row(t);
      for (int64_t i = 0; i < experts; i += kLanes) {
        const int64_t left = experts - i;
        const Vec16 d = simd::sub(simd::load(gradient.data() + i, left), dot);
        simd::store(out + i, simd::mul(simd::load(p + i, left), d), left);
      }
      for (int64_t j = 0; j < k; ++j)
        out[chosen[static_cast<size_t>(j)]] += slopes[static_cast<size_t>(j)];
    }
  });
}

// On one thread: a few passes over k ids a token.
void group_by_expert(const Stream& stream, const ExpertGroups& a) {
  const int64_t k = a.experts_per_token, experts = std::ssize(a.offsets) - 1;
  TR_CHECK(k >= 1 && a.tokens.size() == a.chosen.size() && a.rows.size() == a.chosen.size() &&
               std::ssize(a.chosen) % k == 0,
           "{} choices, {} tokens, {} rows", a.chosen.size(), a.tokens.size(), a.rows.size());
  parallel_for(stream, 1, 1, [&](int64_t, int64_t) {
    std::ranges::fill(a.offsets, 0);
    for (const int32_t e : a.chosen) {
      TR_CHECK(e >= 0 && e < experts, "expert {} of {}", e, experts);
      ++a.offsets[static_cast<size_t>(e) + 1];
    }
    for (size_t e = 1; e < a.offsets.size(); ++e) a.offsets[e] += a.offsets[e - 1];
    // offsets[e] runs through the rows of e and ends where those of e + 1 begin.
    for (size_t c = 0; c < a.chosen.size(); ++c) {
      const int32_t row = a.offsets[static_cast<size_t>(a.chosen[c])]++;
      a.rows[c] = row;
      a.tokens[static_cast<size_t>(row)] = static_cast<int32_t>(static_cast<int64_t>(c) / k);
    }
    for (size_t e = a.offsets.size() - 1; e > 0; --e) a.offsets[e] = a.offsets[e - 1];
    a.offsets[0] = 0;
  });
}

void expert_balance(const Stream& stream, const ExpertBalance& a) {
  const ConstMatrix probabilities = a.probabilities.host();
  const Matrix gradient = a.gradient.host();
  const int64_t tokens = probabilities.rows, experts = probabilities.cols;
  const int64_t sequences = std::ssize(a.sequence_offsets) - 1;
  TR_CHECK(sequences >= 0 && a.sequence_offsets.back() == tokens &&
               std::ssize(a.choices) == experts && std::ssize(a.losses) == experts &&
               (gradient.rows == 0 || (gradient.rows == sequences && gradient.cols == experts)),
           "{} tokens in {} sequences, {} experts", tokens, sequences, experts);
  if (tokens == 0) return;
  const int64_t k = std::ssize(a.chosen) / tokens;
  check_choices(probabilities, a.chosen, k);
  // By experts: the sums of one belong to one thread.
  const int64_t grain = std::max<int64_t>(1, 32 * 1024 / (tokens * (k + 1)));
  parallel_for(stream, experts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t first = a.sequence_offsets[static_cast<size_t>(s)];
        const int64_t last = a.sequence_offsets[static_cast<size_t>(s) + 1];
        const auto ids = a.chosen.subspan(static_cast<size_t>(first * k),
                                          static_cast<size_t>((last - first) * k));
        const int64_t choices = std::ranges::count(ids, static_cast<int32_t>(e));
        double sum = 0;
        for (int64_t t = first; t < last; ++t) sum += probabilities.row(t)[e];
        const double slope = static_cast<double>(experts * choices) /
                             static_cast<double>(std::max<int64_t>(last - first, 1));
        a.choices[static_cast<size_t>(e)] += choices;
        a.losses[static_cast<size_t>(e)] += slope * sum;
        if (gradient.rows > 0) gradient.row(s)[e] = static_cast<float>(a.scale * slope);
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
