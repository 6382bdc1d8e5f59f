#include "kernels/ops/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/simd.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"

namespace tailrace::cpu {

namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// Logits of one round of the fused head: they stay in the cache between product and softmax.
constexpr int64_t kChunkFloats = 128 * 1024;
// Two tiles of rows (gemm.h) with AVX-512: with a large vocabulary fewer rows would read all of W
// for too little work.
constexpr int64_t kMinChunkRows = 24;

struct RowSum {
  float lse = 0;
  float entropy = 0;
};

struct Partial {
  float max = kMinusInf;
  float sum = 0;       // of e^(z' - max)
  float weighted = 0;  // of e^(z' - max) (z' - max)
};

template <bool kEntropy>
Partial sum_block(const float* logits, int64_t n, Vec16 inv_temperature) {
  const Vec16 lowest = simd::broadcast(kMinusInf);
  Vec16 max = lowest;
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec16 z = simd::mul(simd::load(logits + i, n - i), inv_temperature);
    max = simd::max(max, simd::select_first(n - i, z, lowest));
  }
  Partial block;
  block.max = simd::reduce_max(max);
  // All logits are -inf: z - max would be NaN. A block of probability 0 adds nothing.
  if (block.max == kMinusInf) return block;
  const Vec16 shift = simd::broadcast(block.max);
  Vec16 sum = simd::zero(), weighted = simd::zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec16 z = simd::mul(simd::load(logits + i, n - i), inv_temperature);
    Vec16 u = simd::sub(simd::select_first(n - i, z, lowest), shift);
    Vec16 e = simd::exp(u);
    sum = simd::add(sum, e);
    // e is 0 below -88 and 0 * -inf is not: keep u finite there.
    if (kEntropy) weighted = simd::fma(e, simd::max(simd::broadcast(-100.0f), u), weighted);
  }
  block.sum = simd::reduce_add(sum);
  if (kEntropy) block.weighted = simd::reduce_add(weighted);
  return block;
}

// Both sums of `part` as if its maximum had been `max`.
Partial with_max(Partial part, float max) {
  if (part.max == max || part.sum == 0)
    return {.max = max, .sum = part.sum, .weighted = part.weighted};
  const float shift = part.max - max;
  // simd::exp and not std::exp: the recipe of the terms that it rescales.
  const float factor = simd::exp(shift);
  // Without mass, shift may be -inf, and 0 * -inf would be NaN.
  const float weighted = factor == 0 ? 0 : factor * (part.weighted + shift * part.sum);
  return {.max = max, .sum = factor * part.sum, .weighted = weighted};
}

template <bool kEntropy>
RowSum sum_row(const float* logits, int64_t vocab, float inv_temperature) {
  Partial total;
  for (int64_t i = 0; i < vocab; i += kVocabBlock) {
    const int64_t n = std::min(kVocabBlock, vocab - i);
    Partial block = sum_block<kEntropy>(logits + i, n, simd::broadcast(inv_temperature));
    const float max = std::max(total.max, block.max);
    total = with_max(total, max);
    block = with_max(block, max);
    total.sum += block.sum;
    total.weighted += block.weighted;
  }
  // With u = z' - max, S = sum of e^u and W = sum of u e^u: log p = u - log S, so the entropy -sum
  // of p log p is log S - W / S.
  const float log_sum = std::log(total.sum);
  return {.lse = total.max + log_sum, .entropy = log_sum - total.weighted / total.sum};
}

RowSum sum_row(const float* logits, int64_t vocab, float inv_temperature, bool entropy) {
  return entropy ? sum_row<true>(logits, vocab, inv_temperature)
                 : sum_row<false>(logits, vocab, inv_temperature);
}

int64_t chunk_rows(int64_t rows, int64_t vocab) {
  // By the sizes alone: the chunk decides where dweight's sum over rows is cut.
  return std::min(rows, std::max(kMinChunkRows, kChunkFloats / std::max<int64_t>(vocab, 1)));
}

int64_t grain_rows(int64_t vocab) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(vocab, 1));
}

// Turns a row of logits into dlogits.
//   p (log p + entropy) with log p = z' - lse
void grad_row(float* logits, int64_t vocab, int32_t target, float inv_temperature, float lse,
              float entropy, float dlogprob, float dentropy) {
  const Vec16 scale = simd::broadcast(inv_temperature);
  const Vec16 dl = simd::broadcast(-dlogprob * inv_temperature);
  const Vec16 dh = simd::broadcast(-dentropy * inv_temperature);
  for (int64_t i = 0; i < vocab; i += kLanes) {
    const int64_t left = vocab - i;
    Vec16 logp = simd::sub(simd::mul(simd::load(logits + i, left), scale), simd::broadcast(lse));
    Vec16 p = simd::exp(logp);
    // p is 0 where log p is below -88, and 0 * -inf would be NaN.
    Vec16 finite = simd::max(simd::broadcast(-100.0f), logp);
    Vec16 factor = simd::fma(dh, simd::add(finite, simd::broadcast(entropy)), dl);
    simd::store(logits + i, simd::mul(p, factor), left);
  }
  // The one-hot part of onehot - p, after the loop that knows nothing of the target.
  logits[target] += dlogprob * inv_temperature;
}

}  // namespace

void log_sum_exp(const Stream& stream, ConstMatrix logits, float inv_temperature,
                 std::span<float> lse, std::span<float> entropy) {
  TR_CHECK(static_cast<int64_t>(lse.size()) == logits.rows, "{} rows, lse [{}]", logits.rows,
           lse.size());
  TR_CHECK(entropy.empty() || entropy.size() == lse.size());
  parallel_for(stream, logits.rows, grain_rows(logits.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      RowSum sum = sum_row(logits.row(r), logits.cols, inv_temperature, !entropy.empty());
      lse[static_cast<size_t>(r)] = sum.lse;
      if (!entropy.empty()) entropy[static_cast<size_t>(r)] = sum.entropy;
    }
  });
}

void linear_logprob(const Stream& stream, Workspace& workspace, ConstMatrix hidden,
                    const PackedWeight& weight, std::span<const int32_t> targets,
                    float inv_temperature, std::span<float> logprob, std::span<float> lse,
                    std::span<float> entropy) {
  const int64_t rows = hidden.rows, vocab = weight.out;
  TR_CHECK(static_cast<int64_t>(targets.size()) == rows && logprob.size() == targets.size() &&
               lse.size() == targets.size(),
           "{} rows, targets [{}], logprob [{}], lse [{}]", rows, targets.size(), logprob.size(),
           lse.size());
  TR_CHECK(entropy.empty() || entropy.size() == lse.size());
  if (rows == 0) return;
  Workspace::Scope scope(workspace);
  const int64_t chunk = chunk_rows(rows, vocab);
  auto logits = workspace.take<float>(chunk * vocab);
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    Matrix z(logits.data(), count, vocab);
    // The same product, and below it the same expression, as the sampler's (Engine::draw): that
    // makes a recomputed log-probability the sampled one, bit for bit.
    cpu::linear(stream, hidden.slice_rows(first, first + count), weight, {}, z);
    parallel_for(stream, count, grain_rows(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto i = static_cast<size_t>(first + r);
        TR_CHECK(targets[i] >= 0 && targets[i] < vocab, "target {} of {}", targets[i], vocab);
        RowSum sum = sum_row(z.row(r), vocab, inv_temperature, !entropy.empty());
        lse[i] = sum.lse;
        if (!entropy.empty()) entropy[i] = sum.entropy;
        logprob[i] = z.row(r)[targets[i]] * inv_temperature - sum.lse;
      }
    });
  }
}

void linear_logprob_backward(const Stream& stream, Workspace& workspace, ConstMatrix hidden,
                             const PackedWeight& weight, ConstMatrix weight_rows,
                             std::span<const int32_t> targets, float inv_temperature,
                             std::span<const float> lse, std::span<const float> entropy,
                             std::span<const float> dlogprob, std::span<const float> dentropy,
                             Matrix dhidden, Matrix dweight) {
  const int64_t rows = hidden.rows, dim = hidden.cols, vocab = weight.out;
  TR_CHECK(static_cast<int64_t>(targets.size()) == rows && lse.size() == targets.size() &&
           dlogprob.size() == targets.size() && dhidden.rows == rows && dhidden.cols == dim);
  TR_CHECK(dentropy.empty() ||
           (dentropy.size() == dlogprob.size() && entropy.size() == dlogprob.size()));
  for (int64_t r = 0; r < rows; ++r) std::fill_n(dhidden.row(r), dim, 0.0f);

  Workspace::Scope scope(workspace);
  auto active = workspace.take<int32_t>(rows);
  int64_t num_active = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const bool used = dlogprob[i] != 0 || (!dentropy.empty() && dentropy[i] != 0);
    // Zero advantages and clipped ratios are common, and a row costs a product with the whole
    // vocabulary.
    if (used) active[static_cast<size_t>(num_active++)] = static_cast<int32_t>(r);
  }
  if (num_active == 0) return;

  // A chunk's place in the sum over rows is fixed by the sizes alone, so dweight has the same bits
  // for every number of threads.
  const int64_t chunk = chunk_rows(num_active, vocab);
  auto logits = workspace.take<float>(chunk * vocab);
  auto gathered = workspace.take<float>(chunk * dim);
  auto grads = workspace.take<float>(chunk * dim);
  auto copy_row = [dim](float* to, const float* from) {
    std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(float));
  };
  for (int64_t first = 0; first < num_active; first += chunk) {
    const int64_t count = std::min(chunk, num_active - first);
    auto ids = active.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    Matrix z(logits.data(), count, vocab), x(gathered.data(), count, dim),
        dx(grads.data(), count, dim);
    for (int64_t r = 0; r < count; ++r) copy_row(x.row(r), hidden.row(ids[static_cast<size_t>(r)]));
    // Logits are made a second time rather than kept: [rows, vocab] floats would often be the
    // largest buffer of a step.
    cpu::linear(stream, x, weight, {}, z);
    parallel_for(stream, count, grain_rows(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto i = static_cast<size_t>(ids[static_cast<size_t>(r)]);
        TR_CHECK(targets[i] >= 0 && targets[i] < vocab, "target {} of {}", targets[i], vocab);
        grad_row(z.row(r), vocab, targets[i], inv_temperature, lse[i],
                 dentropy.empty() ? 0 : entropy[i], dlogprob[i],
                 dentropy.empty() ? 0 : dentropy[i]);
      }
    });
    cpu::linear_grad_input(stream, workspace, z, weight_rows, dx, /*accumulate=*/false);
    cpu::linear_grad_weight(stream, workspace, z, x, dweight);
    for (int64_t r = 0; r < count; ++r)
      copy_row(dhidden.row(ids[static_cast<size_t>(r)]), dx.row(r));
  }
}

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim) {
  // chunk_rows() grows with the rows, so the chunk of fewer active rows fits as well.
  const int64_t chunk = chunk_rows(rows, vocab);
  auto bytes = [](int64_t floats) {
    return Workspace::aligned(static_cast<size_t>(floats) * sizeof(float));
  };
  return bytes(rows) + bytes(chunk * vocab) + 2 * bytes(chunk * dim) +
         linear_grad_workspace_bytes(chunk, vocab, dim);
}

}  // namespace tailrace::cpu
