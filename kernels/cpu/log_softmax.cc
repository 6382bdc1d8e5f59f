#include "kernels/ops/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear_parts.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Logits of one round of the fused head: they stay in the cache between product and softmax.
constexpr int64_t kChunkFloats = 128 * 1024;
// With a large vocabulary fewer rows would read all of W, and read and write all of its gradient,
// for too little work.
constexpr int64_t kMinChunkRows = 96;
// Multiply-adds that take about as long as what is done with a logit, most of it an exponential.
constexpr int64_t kLogitWork = 16;

struct RowSum {
  float lse = 0;
  float entropy = 0;
};

struct Partial {
  float max = kLowest;
  float sum = 0;       // of e^(z' - max)
  float weighted = 0;  // of e^(z' - max) (z' - max)
};

template <bool kEntropy>
Partial sum_block(const float* logits, int64_t n, Vec16 inv_temperature) {
  const Vec16 lowest = simd::broadcast(kLowest);
  Vec16 max = lowest;
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec16 z = simd::mul(simd::load(logits + i, n - i), inv_temperature);
    max = simd::max(max, simd::select_first(n - i, z, lowest));
  }
  Partial block;
  block.max = simd::reduce_max(max);
  // All logits are -inf: z - max would be NaN. A block of probability 0 adds nothing.
  if (block.max == kLowest) return block;
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

// `block_at(i, n)`: where logits [i, i + n) of the row lie.
template <bool kEntropy, class BlockAt>
RowSum sum_blocks(int64_t size, float inv_temperature, const BlockAt& block_at) {
  Partial total;
  for (int64_t i = 0; i < size; i += kVocabBlock) {
    const int64_t n = std::min(kVocabBlock, size - i);
    Partial block = sum_block<kEntropy>(block_at(i, n), n, simd::broadcast(inv_temperature));
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
  const auto block_at = [logits](int64_t i, int64_t) { return logits + i; };
  return entropy ? sum_blocks<true>(vocab, inv_temperature, block_at)
                 : sum_blocks<false>(vocab, inv_temperature, block_at);
}

// lse_K: the same sum over the members of the set, gathered.
float sum_kept(const float* logits, std::span<const int32_t> kept, float inv_temperature) {
  float gathered[kVocabBlock];
  const auto block_at = [&](int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; ++i) gathered[i] = logits[kept[static_cast<size_t>(begin + i)]];
    return static_cast<const float*>(gathered);
  };
  return sum_blocks<false>(std::ssize(kept), inv_temperature, block_at).lse;
}

void check_sets(const KeptSets& kept, int64_t rows, int64_t vocab) {
  if (kept.empty()) return;
  TR_CHECK(kept.rows() == rows && kept.offsets.front() >= 0 &&
               kept.offsets.back() <= std::ssize(kept.ids) && std::ranges::is_sorted(kept.offsets),
           "{} rows, {} sets of {} ids", rows, kept.rows(), kept.ids.size());
  // They ascend, so that the ends say it of all.
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const auto set = kept.of(r);
    TR_CHECK(set.empty() || (set.front() >= 0 && set.back() < vocab), "ids {}..{} of {}",
             set.front(), set.back(), vocab);
  }
}

int64_t chunk_rows(int64_t rows, int64_t vocab) {
  // By the sizes alone: the chunk decides where dweight's sum over rows is cut.
  return std::min(rows, std::max(kMinChunkRows, kChunkFloats / std::max<int64_t>(vocab, 1)));
}

// The part of the logits that the backward pass makes at once.
struct LogitBlock {
  int64_t rows, cols;
};
// A head that the caches do not hold is read once for many rows, some of the vocabulary at a time,
// and so is its gradient. A row with a kept set needs all of its logits at once.
constexpr int64_t kMaxRows = 2048;
LogitBlock logit_block(int64_t rows, int64_t vocab, int64_t dim, bool has_sets) {
  constexpr int64_t kCachedWeight = 1 << 20, kBlockFloats = 4 << 20;
  if (has_sets || vocab * dim <= kCachedWeight) return {chunk_rows(rows, vocab), vocab};
  const int64_t chunk = std::max<int64_t>(std::min(rows, kMaxRows), 1);
  return {chunk,
          std::min(vocab, std::max(kBlockFloats / chunk / kVocabBlock, int64_t{1}) * kVocabBlock)};
}

int64_t log_softmax_grain(int64_t vocab) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(vocab, 1));
}

// The factors that the gradient of a row is made of.
struct RowGradient {
  float inv_temperature, lse, entropy, dlogprob, dentropy;
};

// Makes of logits dlogits, which may lie in their place, but for the one-hot part of onehot - p.
//   p (log p + entropy) with log p = z' - lse
void grad_softmax(const float* logits, int64_t size, const RowGradient& g, float* dlogits) {
  const Vec16 scale = simd::broadcast(g.inv_temperature), lse = simd::broadcast(g.lse);
  const Vec16 dl = simd::broadcast(-g.dlogprob * g.inv_temperature);
  const Vec16 dh = simd::broadcast(-g.dentropy * g.inv_temperature);
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    Vec16 logp = simd::sub(simd::mul(simd::load(logits + i, left), scale), lse);
    Vec16 p = simd::exp(logp);
    // p is 0 where log p is below -88, and 0 * -inf would be NaN.
    Vec16 finite = simd::max(simd::broadcast(-100.0f), logp);
    Vec16 factor = simd::fma(dh, simd::add(finite, simd::broadcast(g.entropy)), dl);
    simd::store(dlogits + i, simd::mul(p, factor), left);
  }
}

// The same of a row whose log-probability is that of a draw from `kept`.
void grad_kept_softmax(const float* logits, int64_t vocab, std::span<const int32_t> kept,
                       const RowGradient& g, float* dlogits) {
  const float kept_lse = sum_kept(logits, kept, g.inv_temperature);
  // Outside the set the log-probability has no part, the entropy has.
  RowGradient entropy_alone = g;
  entropy_alone.dlogprob = 0;
  const auto finish = [&](int64_t begin, int64_t end) {
    if (g.dentropy == 0) {
      std::fill(dlogits + begin, dlogits + end, 0.0f);
    } else {
      grad_softmax(logits + begin, end - begin, entropy_alone, dlogits + begin);
    }
  };
  int64_t done = 0;
  for (int32_t id : kept) {
    const float p = simd::exp(logits[id] * g.inv_temperature - kept_lse);
    finish(done, id + 1);
    dlogits[id] -= g.dlogprob * g.inv_temperature * p;
    done = id + 1;
  }
  finish(done, vocab);
}

// The logits of `size` ids from `first` on.
void grad_row(const float* logits, int64_t first, int64_t size, int32_t target,
              std::span<const int32_t> kept, const RowGradient& g, float* dlogits) {
  if (kept.empty()) {
    grad_softmax(logits, size, g, dlogits);
  } else {
    grad_kept_softmax(logits, size, kept, g, dlogits);
  }
  // The one-hot part, after the loops that know nothing of the target.
  if (target >= first && target < first + size)
    dlogits[target - first] += g.dlogprob * g.inv_temperature;
}

}  // namespace

void log_sum_exp(const Stream& stream, const LogSumExp& args) {
  const ConstMatrix logits = args.logits.host();
  const float inv_temperature = args.inv_temperature;
  const std::span<float> lse = args.lse, entropy = args.entropy;
  TR_CHECK(static_cast<int64_t>(lse.size()) == logits.rows, "{} rows, lse [{}]", logits.rows,
           lse.size());
  TR_CHECK(entropy.empty() || entropy.size() == lse.size());
  parallel_for(
      stream, logits.rows, log_softmax_grain(logits.cols), [&](int64_t begin, int64_t end) {
        WorkPulse pulse;
        for (int64_t r = begin; r < end; ++r) {
          RowSum sum = sum_row(logits.row(r), logits.cols, inv_temperature, !entropy.empty());
          lse[static_cast<size_t>(r)] = sum.lse;
          if (!entropy.empty()) entropy[static_cast<size_t>(r)] = sum.entropy;
          pulse.add(logits.cols * kLogitWork);
        }
      });
}

void kept_log_sum_exp(const Stream& stream, const KeptLogSumExp& args) {
  const ConstMatrix logits = args.logits.host();
  const KeptSets& kept = args.kept;
  const float inv_temperature = args.inv_temperature;
  const std::span<float> kept_lse = args.kept_lse;
  TR_CHECK(kept.rows() == logits.rows && std::ssize(kept_lse) == logits.rows,
           "{} rows, {} sets, lse [{}]", logits.rows, kept.rows(), kept_lse.size());
  check_sets(kept, logits.rows, logits.cols);
  parallel_for(
      stream, logits.rows, log_softmax_grain(logits.cols), [&](int64_t begin, int64_t end) {
        WorkPulse pulse;
        for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
          const auto set = kept.of(r);
          if (set.empty()) continue;
          kept_lse[r] = sum_kept(logits.row(static_cast<int64_t>(r)), set, inv_temperature);
          pulse.add(std::ssize(set) * kLogitWork);
        }
      });
}

void linear_logprob(const Stream& stream, Workspace& workspace, const LinearLogprob& args) {
  const auto [head, out] = args;
  const ConstMatrix hidden = head.hidden.host();
  const std::span<const int32_t> targets = head.targets;
  const float inv_temperature = head.inv_temperature;
  const std::span<float> logprob = out.logprob, lse = out.lse, entropy = out.entropy;
  const int64_t rows = hidden.rows, vocab = head.weight.out;
  TR_CHECK(static_cast<int64_t>(targets.size()) == rows && logprob.size() == targets.size() &&
               lse.size() == targets.size(),
           "{} rows, targets [{}], logprob [{}], lse [{}]", rows, targets.size(), logprob.size(),
           lse.size());
  TR_CHECK(entropy.empty() || entropy.size() == lse.size());
  const bool keeps = out.logits.rows > 0;
  TR_CHECK(!keeps || (out.logits.rows == rows && out.logits.cols == vocab),
           "logits [{}, {}] of {} rows", out.logits.rows, out.logits.cols, rows);
  check_sets(head.kept, rows, vocab);
  if (rows == 0) return;
  Workspace::Scope scope(workspace);
  const int64_t chunk = chunk_rows(rows, vocab);
  auto logits = workspace.take<float>(keeps ? 0 : chunk * vocab);
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const Matrix z = keeps ? out.logits.slice_rows(first, first + count).host()
                           : Matrix(logits.data(), count, vocab);
    // The product of the engine, and below it the expression of sample(): that makes a recomputed
    // log-probability the sampled one, bit for bit.
    cpu::linear(stream,
                {.x = hidden.slice_rows(first, first + count), .weight = head.weight, .y = z});
    parallel_for(stream, count, log_softmax_grain(vocab), [&](int64_t begin, int64_t end) {
      WorkPulse pulse;
      for (int64_t r = begin; r < end; ++r) {
        const auto i = static_cast<size_t>(first + r);
        TR_CHECK(targets[i] >= 0 && targets[i] < vocab, "target {} of {}", targets[i], vocab);
        const auto set = head.kept.of(i);
        RowSum sum = sum_row(z.row(r), vocab, inv_temperature, !entropy.empty());
        lse[i] = sum.lse;
        if (!entropy.empty()) entropy[i] = sum.entropy;
        logprob[i] = z.row(r)[targets[i]] * inv_temperature - sum.lse;
        // Less the log-mass, as who reads the sampler's two numbers does.
        if (!set.empty()) logprob[i] -= log_mass(sum_kept(z.row(r), set, inv_temperature), sum.lse);
        pulse.add((vocab + std::ssize(set)) * kLogitWork);
      }
    });
  }
}

void linear_logprob_backward(const Stream& stream, Workspace& workspace,
                             const LinearLogprobBackward& args) {
  const auto [head, gradient] = args;
  const ConstMatrix hidden = head.hidden.host();
  const Matrix dhidden = gradient.dhidden.host();
  const std::span<const int32_t> targets = head.targets;
  const std::span<const float> lse = gradient.lse, entropy = gradient.entropy,
                               dlogprob = gradient.dlogprob, dentropy = gradient.dentropy;
  const int64_t rows = hidden.rows, dim = hidden.cols, vocab = head.weight.out;
  TR_CHECK(static_cast<int64_t>(targets.size()) == rows && lse.size() == targets.size() &&
           dlogprob.size() == targets.size() && dhidden.rows == rows && dhidden.cols == dim);
  TR_CHECK(dentropy.empty() ||
           (dentropy.size() == dlogprob.size() && entropy.size() == dlogprob.size()));
  const bool keeps = gradient.logits.rows > 0;
  TR_CHECK(!keeps || (gradient.logits.rows == rows && gradient.logits.cols == vocab),
           "logits [{}, {}] of {} rows", gradient.logits.rows, gradient.logits.cols, rows);
  const ConstMatrix kept_logits = keeps ? gradient.logits.host() : ConstMatrix();
  check_sets(head.kept, rows, vocab);
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
  // for every number of threads. The cut of the vocabulary changes no bit.
  const auto [chunk, ids_at_once] = logit_block(num_active, vocab, dim, !head.kept.empty());
  auto logits = workspace.take<float>(chunk * ids_at_once);
  auto gathered = workspace.take<float>(chunk * dim);
  auto grads = workspace.take<float>(chunk * dim);
  auto copy_row = [dim](float* to, const float* from) {
    std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(float));
  };
  for (int64_t first = 0; first < num_active; first += chunk) {
    const int64_t count = std::min(chunk, num_active - first);
    auto ids = active.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    Matrix x(gathered.data(), count, dim), dx(grads.data(), count, dim);
    for (int64_t r = 0; r < count; ++r) copy_row(x.row(r), hidden.row(ids[static_cast<size_t>(r)]));
    for (int64_t id = 0; id < vocab; id += ids_at_once) {
      const int64_t some = std::min(ids_at_once, vocab - id);
      const Weight weight = rows_of(head.weight, id, id + some);
      Matrix z(logits.data(), count, some);
      // Logits that nobody kept, since [rows, vocab] floats would often be the largest buffer of a
      // step, are made a second time.
      if (!keeps) cpu::linear(stream, {.x = x, .weight = weight, .y = z});
      parallel_for(stream, count, log_softmax_grain(some), [&](int64_t begin, int64_t end) {
        WorkPulse pulse;
        for (int64_t r = begin; r < end; ++r) {
          const auto i = static_cast<size_t>(ids[static_cast<size_t>(r)]);
          TR_CHECK(targets[i] >= 0 && targets[i] < vocab, "target {} of {}", targets[i], vocab);
          const bool has_entropy = !dentropy.empty();
          // Into the block, which the products then read from the cache.
          const float* logits_of_row =
              keeps ? kept_logits.row(ids[static_cast<size_t>(r)]) + id : z.row(r);
          grad_row(logits_of_row, id, some, targets[i], head.kept.of(i),
                   {.inv_temperature = head.inv_temperature,
                    .lse = lse[i],
                    .entropy = has_entropy ? entropy[i] : 0,
                    .dlogprob = dlogprob[i],
                    .dentropy = has_entropy ? dentropy[i] : 0},
                   z.row(r));
          pulse.add(some * kLogitWork);
        }
      });
      grad_input_of_rows(stream, workspace, z, weight, /*goes_on=*/id > 0, dx);
      if (gradient.dweight.rows > 0)
        cpu::linear_grad_weight(stream, workspace,
                                {.dy = z,
                                 .x = x,
                                 .dweight = gradient.dweight.slice_rows(id, id + some),
                                 .weight = weight.dtype});
    }
    for (int64_t r = 0; r < count; ++r)
      copy_row(dhidden.row(ids[static_cast<size_t>(r)]), dx.row(r));
  }
}

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim) {
  auto bytes = [](int64_t floats) {
    return Workspace::aligned(static_cast<size_t>(floats) * sizeof(float));
  };
  const int64_t chunk = chunk_rows(rows, vocab);
  size_t size = bytes(chunk * vocab);  // forward
  const auto add_backward = [&](LogitBlock block) {
    size = std::max(size, bytes(block.rows * block.cols) + 2 * bytes(block.rows * dim) +
                              linear_grad_workspace_bytes(block.rows, block.cols, dim));
  };
  add_backward({chunk, vocab});
  // Any number of rows may be active; fewer have wider blocks.
  for (int64_t active = 1; active <= std::min(rows, kMaxRows); ++active)
    add_backward(logit_block(active, vocab, dim, /*has_sets=*/false));
  return bytes(rows) + size;
}

}  // namespace tailrace::cpu::inline TR_ISA
