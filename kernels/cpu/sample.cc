#include "kernels/ops/sample.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr int64_t kGroup = 16;

// One row while it is drawn from; all spans are [vocab].
struct Row {
  std::span<const float> logits;
  const SamplingRow& how;
  std::span<float> weights;  // scratch
  std::span<int32_t> ids;    // scratch, and at last the set

  int64_t vocab() const { return std::ssize(logits); }
};

// The weights that tokens are drawn by: exp((logit - largest) * inv_temperature). The largest is 1.
void fill_weights(const Row& row) {
  const float* const logits = row.logits.data();
  const int64_t size = row.vocab();
  Vec16 largest = simd::broadcast(logits[0]);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) largest = simd::max(simd::load(logits + i), largest);
  float top = simd::reduce_max(largest);
  for (; i < size; ++i) top = logits[i] > top ? logits[i] : top;
  const Vec16 all = simd::broadcast(top), scale = simd::broadcast(row.how.inv_temperature);
  for (i = 0; i < size; i += kLanes) {
    const Vec16 x = simd::mul(simd::sub(simd::load(logits + i, size - i), all), scale);
    simd::store(row.weights.data() + i, simd::exp(x), size - i);
  }
}

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
int32_t draw_in_id_order(std::span<const float> weights, double uniform) {
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
      return static_cast<int32_t>(chosen);
    }
    passed += sum;
  }
  // The target lies behind the last sum by rounding: the last token that has a weight at all.
  int64_t last = size - 1;
  while (last > 0 && !(weights[last] > 0)) --last;
  return static_cast<int32_t>(last);
}

// The tokens that truncation keeps: the first n entries of row.ids, likeliest first, with their
// unnormalised probabilities at row.weights[id]. Returns n >= 1.
int64_t keep_tokens(const Row& row) {
  const auto& [logits, how, weights, all_ids] = row;
  const int64_t vocab = row.vocab();
  fill_weights(row);
  int32_t* const ids = all_ids.data();
  for (int64_t i = 0; i < vocab; ++i) ids[i] = static_cast<int32_t>(i);
  // By logit rather than by weight: exponentials that underflow or round together keep their order.
  // A lambda, here and below, also because it puts the instances of the sorts in this namespace.
  auto likelier = [z = logits.data()](int32_t a, int32_t b) {
    return z[a] > z[b] || (z[a] == z[b] && a < b);
  };

  const int64_t allowed = how.top_k > 0 ? std::min<int64_t>(how.top_k, vocab) : vocab;
  double total = 0;  // of the tokens that top-k keeps
  int64_t sorted = 0;
  auto sort_more = [&](int64_t count) {
    count = std::min(count, allowed);
    if (count < vocab) {
      // Behind `sorted` all are less likely, so a piece is found in linear time and only it is
      // sorted.
      std::nth_element(ids + sorted, ids + count - 1, ids + vocab, likelier);
    }
    std::sort(ids + sorted, ids + count, likelier);
    sorted = count;
  };
  if (allowed < vocab) {
    sort_more(allowed);
    for (int64_t i = 0; i < allowed; ++i) total += weights[ids[i]];
  } else {
    for (int64_t i = 0; i < vocab; ++i) total += weights[i];
  }

  // The likeliest tokens are sorted as far as they are needed, in growing pieces.
  const bool nucleus = how.top_p < 1.0;
  double reached = 0;
  int64_t kept = 0;
  while (kept < allowed) {
    // A nucleus is usually a few dozen of many thousand tokens.
    if (kept == sorted) sort_more(std::max<int64_t>(64, sorted * 8));
    const float weight = weights[ids[kept]];
    // Against the likeliest: a ratio of weights is a ratio of probabilities, whatever the sum is.
    if (kept > 0 && weight < how.min_p * weights[ids[0]]) break;
    ++kept;
    reached += weight;
    // After the token is kept: the set is the smallest that reaches top_p, so one token at least.
    if (nucleus && reached >= how.top_p * total) break;
  }
  return kept;
}

struct Drawn {
  int32_t token = 0, kept = 0;
};

Drawn draw(const Row& row) {
  const std::span<const float> logits = row.logits;
  if (row.how.greedy) {
    size_t best = 0;  // the smaller id wins a tie, as everywhere
    for (size_t i = 1; i < logits.size(); ++i)
      if (logits[i] > logits[best]) best = i;
    return {static_cast<int32_t>(best)};
  }
  if (!truncates(row.how, row.vocab())) {
    fill_weights(row);
    return {draw_in_id_order(row.weights, row.how.uniform)};
  }
  // In order of likelihood, as keep_tokens() left them: sorting by id would change nothing in the
  // distribution.
  const auto kept = row.ids.first(static_cast<size_t>(keep_tokens(row)));
  double total = 0;
  for (int32_t id : kept) total += row.weights[id];
  double target = row.how.uniform * total, passed = 0;
  int32_t token = kept[0];  // also when all weights but the first are rounded away
  for (int32_t id : kept) {
    passed += row.weights[id];
    if (passed > target) {
      token = id;
      break;
    }
  }
  // The recorded set has one order, whatever the order of likelihood is.
  std::sort(kept.data(), kept.data() + kept.size(), [](int32_t a, int32_t b) { return a < b; });
  return {token, static_cast<int32_t>(kept.size())};
}

}  // namespace

void sample(const Stream& stream, Workspace& workspace, const SampleTokens& args) {
  check_sample(args);
  const ConstMatrix logits = args.logits.host();
  const int64_t vocab = logits.cols;
  Workspace::Scope scope(workspace);
  const auto weights = workspace.take<float>(logits.rows * vocab);
  parallel_for(
      stream, logits.rows, std::max<int64_t>(1, 8192 / vocab), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const auto i = static_cast<size_t>(r), at = static_cast<size_t>(r * vocab);
          const auto size = static_cast<size_t>(vocab);
          const SamplingRow& how = args.rows[i];
          const ConstMatrix z = logits.slice_rows(r, r + 1);
          // The ops themselves, so that sampled numbers and recomputed ones are the same bits.
          cpu::log_sum_exp(
              Stream{},
              {.logits = z, .inv_temperature = how.inv_temperature, .lse = args.lse.subspan(i, 1)});
          args.kept_counts[i] = 0;
          args.drawn[i] = -1;
          if (!std::isfinite(args.lse[i])) continue;
          const auto ids = args.kept_ids.subspan(at, size);
          const auto [token, kept] = draw({.logits = {z.data, size},
                                           .how = how,
                                           .weights = weights.subspan(at, size),
                                           .ids = ids});
          args.drawn[i] = token;
          args.kept_counts[i] = kept;
          // The expression of linear_logprob(), term by term. Written in another way it would round
          // in another way, and the trainer would see a mismatch where there is none.
          args.logprobs[i] = z.data[token] * how.inv_temperature - args.lse[i];
          if (kept == 0) continue;
          const std::array<int64_t, 2> offsets = {0, kept};
          cpu::kept_log_sum_exp(Stream{}, {.logits = z,
                                           .kept = {offsets, ids},
                                           .inv_temperature = how.inv_temperature,
                                           .kept_lse = args.kept_lse.subspan(i, 1)});
        }
      });
}

size_t sample_workspace_bytes(int64_t rows, int64_t vocab) {
  return Workspace::aligned(static_cast<size_t>(rows * vocab) * sizeof(float));
}

}  // namespace tailrace::cpu::inline TR_ISA
