#include "kernels/ops/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr int64_t kSumBlock = 4096;  // elements; part of the meaning of sum_of_squares

// In double the squares of floats are exact, and no float is too large: an overflow is a gradient
// that was not finite.
double sum_of_block(const float* x, int64_t n) {
  std::array<double, kLanes> lane{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double v = x[i + j];
      lane[static_cast<size_t>(j)] += v * v;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const double v = x[i + j];
    lane[static_cast<size_t>(j)] += v * v;
  }
  double sum = 0;
  for (double v : lane) sum += v;
  return sum;
}

}  // namespace

void begin_update(const Stream&, const BeginUpdate& args) {
  TR_CHECK(args.state.size() == 1 && !args.rates.empty(), "state [{}], rates [{}]",
           args.state.size(), args.rates.size());
  UpdateState& state = args.state[0];
  state.grad_norm = std::sqrt(state.sum_of_squares);
  state.skips = !std::isfinite(state.grad_norm);
  state.lr = state.grad_scale = 0;
  if (state.skips) {
    ++state.skipped;
    return;
  }
  ++state.updates;
  TR_CHECK(state.updates >= args.first_rate, "update {}, rates from {}", state.updates,
           args.first_rate);
  const auto rate = static_cast<size_t>(state.updates - args.first_rate);
  state.lr = rate < args.rates.size() ? args.rates[rate] : args.rates.back();
  state.grad_scale = 1;
  if (args.max_grad_norm > 0) {
    const double scale = args.max_grad_norm / (state.grad_norm + 1e-6);
    if (scale < 1) state.grad_scale = static_cast<float>(scale);
  }
}

void adamw(const Stream& stream, const AdamW& args) {
  const auto [states, constants, parameters, gradients, m, v] = args;
  const auto n = static_cast<int64_t>(parameters.size());
  TR_CHECK(gradients.size() == parameters.size() && m.size() == parameters.size() &&
               v.size() == parameters.size(),
           "{} parameters, {} gradients, {} m, {} v", n, gradients.size(), m.size(), v.size());
  TR_CHECK(states.size() == 1, "state [{}]", states.size());
  const UpdateState& state = states[0];
  if (state.skips) return;
  TR_CHECK(state.updates >= 1, "updates={}", state.updates);
  // 1 - beta^t in double: with beta2 = 0.999 a float power would cost the first updates three of
  // its seven digits.
  const auto t = static_cast<double>(state.updates);
  const Vec16 scale = simd::broadcast(state.grad_scale);
  const Vec16 beta1 = simd::broadcast(constants.beta1), beta2 = simd::broadcast(constants.beta2);
  const Vec16 rest1 =
      simd::broadcast(static_cast<float>(1.0 - static_cast<double>(constants.beta1)));
  const Vec16 rest2 =
      simd::broadcast(static_cast<float>(1.0 - static_cast<double>(constants.beta2)));
  const Vec16 unbias1 =
      simd::broadcast(static_cast<float>(1.0 / (1.0 - std::pow(double{constants.beta1}, t))));
  const Vec16 unbias2 =
      simd::broadcast(static_cast<float>(1.0 / (1.0 - std::pow(double{constants.beta2}, t))));
  const Vec16 decay =
      simd::broadcast(static_cast<float>(-double{state.lr} * double{constants.weight_decay}));
  const Vec16 minus_lr = simd::broadcast(-state.lr), eps = simd::broadcast(constants.eps);

  const int64_t vectors = (n + kLanes - 1) / kLanes;
  parallel_for(stream, vectors, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kLanes; i < std::min(n, end * kLanes); i += kLanes) {
      const int64_t left = n - i;
      const Vec16 g = simd::mul(simd::load(gradients.data() + i, left), scale);
      Vec16 p = simd::load(parameters.data() + i, left);
      const Vec16 m1 = simd::fma(beta1, simd::load(m.data() + i, left), simd::mul(rest1, g));
      const Vec16 v1 =
          simd::fma(beta2, simd::load(v.data() + i, left), simd::mul(simd::mul(rest2, g), g));
      // Decay acts on the weight itself and not through the moments (Loshchilov & Hutter 2019), and
      // on the weight before the step.
      p = simd::fma(decay, p, p);
      // eps is added to the root of the corrected moment, as in Kingma & Ba 2015, algorithm 1, not
      // inside it.
      const Vec16 root = simd::add(simd::sqrt(simd::mul(v1, unbias2)), eps);
      p = simd::fma(minus_lr, simd::div(simd::mul(m1, unbias1), root), p);
      simd::store(parameters.data() + i, p, left);
      simd::store(m.data() + i, m1, left);
      simd::store(v.data() + i, v1, left);
    }
  });
}

void sum_of_squares(const Stream& stream, const SumOfSquares& args) {
  const std::span<const float> x = args.x;
  const std::span<double> sum = args.sum;
  TR_CHECK(sum.size() == 1, "sum [{}]", sum.size());
  const auto n = static_cast<int64_t>(x.size());
  const int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  // An op allocates nothing.
  constexpr int64_t kRound = 256;  // blocks whose sums fit on the stack
  std::array<double, kRound> sums;
  double total = 0;
  for (int64_t first = 0; first < blocks; first += kRound) {
    const int64_t count = std::min(kRound, blocks - first);
    parallel_for(stream, count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t at = (first + b) * kSumBlock;
        sums[static_cast<size_t>(b)] = sum_of_block(x.data() + at, std::min(kSumBlock, n - at));
      }
    });
    // By one thread, in the order of the blocks, whoever summed them.
    for (int64_t b = 0; b < count; ++b) total += sums[static_cast<size_t>(b)];
  }
  sum[0] = total;
}

}  // namespace tailrace::cpu::inline TR_ISA
