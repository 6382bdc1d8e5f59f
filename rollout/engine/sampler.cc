#include "rollout/engine/sampler.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/base/random.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

constexpr int64_t kGroup = 16;

// In a fixed tree, as the ops join their lanes: i with i + 8, then + 4, + 2, + 1.
float sum_of_group(const float* x) {
  std::array<float, kGroup / 2> sums;
  for (size_t i = 0; i < 8; ++i) sums[i] = x[i] + x[i + 8];
  for (size_t width = 4; width > 0; width /= 2)
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

// Inverse of the cumulative sum in order of id, first over groups of ids and then inside
// one.
TokenId draw_in_id_order(std::span<const float> weights, double uniform) {
  auto size = static_cast<int64_t>(weights.size());
  // The same sums make the total and find the place, so that both round alike.
  auto group_sum = [&](int64_t begin) {
    if (begin + kGroup <= size) return double{sum_of_group(&weights[begin])};
    double sum = 0;
    for (int64_t i = begin; i < size; ++i) sum += weights[i];
    return sum;
  };
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kGroup) total += group_sum(begin);
  double target = uniform * total, passed = 0;
  for (int64_t begin = 0; begin < size; begin += kGroup) {
    double sum = group_sum(begin);
    if (passed + sum > target) {
      double inside = passed;
      int64_t chosen = -1;  // the last positive one, when rounding leaves the target behind it
      for (int64_t i = begin; i < std::min(begin + kGroup, size) && inside <= target; ++i) {
        if (weights[i] > 0) chosen = i;
        inside += weights[i];
      }
      return static_cast<TokenId>(chosen);
    }
    passed += sum;
  }
  // The target lies behind the last sum by rounding: the last token that has a weight at all.
  int64_t last = size - 1;
  while (last > 0 && !(weights[last] > 0)) --last;
  return static_cast<TokenId>(last);
}

}  // namespace

double sample_uniform(SampleKey key, int64_t position) {
  auto counter = static_cast<uint64_t>(position);
  // The position is the counter (Salmon et al. 2011): a number can be had at any place without
  // those before it.
  auto words = philox(key.value,
                      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
  return uniform_double(words[0], words[1]);
}

int64_t keep_tokens(std::span<const float> logits, const SamplingParams& params,
                    SamplerScratch scratch) {
  auto vocab = static_cast<int64_t>(logits.size());
  softmax_weights(Stream{}, {.logits = logits,
                             .inv_temperature = inverse_temperature(params),
                             .weights = scratch.weights.first(logits.size())});
  auto ids = scratch.ids.first(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  // By logit rather than by weight: exponentials that underflow or round together keep their order.
  auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };

  int64_t allowed = params.top_k > 0 ? std::min(params.top_k, vocab) : vocab;
  double total = 0;  // of the tokens that top-k keeps
  int64_t sorted = 0;
  auto sort_more = [&](int64_t count) {
    count = std::min(count, allowed);
    if (count < vocab) {
      // Behind `sorted` all are less likely, so a piece is found in linear time and only it is
      // sorted.
      std::nth_element(ids.begin() + sorted, ids.begin() + count - 1, ids.end(), likelier);
    }
    std::sort(ids.begin() + sorted, ids.begin() + count, likelier);
    sorted = count;
  };
  if (allowed < vocab) {
    sort_more(allowed);
    for (int64_t i = 0; i < allowed; ++i) total += scratch.weights[ids[i]];
  } else {
    for (int64_t i = 0; i < vocab; ++i) total += scratch.weights[i];
  }

  // The likeliest tokens are sorted as far as they are needed, in growing pieces.
  bool nucleus = params.top_p < 1.0;
  double reached = 0;
  int64_t kept = 0;
  while (kept < allowed) {
    // A nucleus is usually a few dozen of many thousand tokens.
    if (kept == sorted) sort_more(std::max<int64_t>(64, sorted * 8));
    float weight = scratch.weights[ids[kept]];
    // Against the likeliest: a ratio of weights is a ratio of probabilities, whatever the sum is.
    if (kept > 0 && weight < params.min_p * scratch.weights[ids[0]]) break;
    ++kept;
    reached += weight;
    // After the token is kept: the set is the smallest that reaches top_p, so one token at least.
    if (nucleus && reached >= params.top_p * total) break;
  }
  return kept;
}

Drawn sample_token(std::span<const float> logits, const SamplingParams& params, double uniform,
                   SamplerScratch scratch) {
  if (params.temperature <= 0) {
    size_t best = 0;  // the smaller id wins a tie, as everywhere
    for (size_t i = 1; i < logits.size(); ++i)
      if (logits[i] > logits[best]) best = i;
    return {static_cast<TokenId>(best)};
  }
  if (!truncates(params, std::ssize(logits))) {
    softmax_weights(Stream{}, {.logits = logits,
                               .inv_temperature = inverse_temperature(params),
                               .weights = scratch.weights.first(logits.size())});
    return {draw_in_id_order(scratch.weights.first(logits.size()), uniform)};
  }
  // In order of likelihood, as keep_tokens() left them: sorting by id would change nothing in the
  // distribution.
  auto kept = scratch.ids.first(static_cast<size_t>(keep_tokens(logits, params, scratch)));
  double total = 0;
  for (int32_t id : kept) total += scratch.weights[id];
  double target = uniform * total, passed = 0;
  TokenId token = kept[0];  // also when all weights but the first are rounded away
  for (int32_t id : kept) {
    passed += scratch.weights[id];
    if (passed > target) {
      token = id;
      break;
    }
  }
  // What is recorded of the set has one order, whatever the order of likelihood is.
  std::ranges::sort(kept);
  return {token, kept};
}

}  // namespace tailrace
