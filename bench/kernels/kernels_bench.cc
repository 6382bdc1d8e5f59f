// Speed of the products and of attention, against the multiply-add peak measured in the same run.
//
//   kernels_bench [threads] [milliseconds a case]
//
// Each line: the median of many runs, the fastest and the slowest tenth, and the share of the peak
// that the median reaches. With one thread the time is that thread's CPU time, which other
// processes on the machine do not lengthen; with more it is wall time. Outputs are checked against
// the reference once, before anything is timed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/memory.h"
#include "kernels/base/simd.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

struct Timing {
  double median = 0, fast = 0, slow = 0;  // seconds
};

double seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
Timing measure(clockid_t clock, double budget_seconds, F&& f) {
  f();
  std::vector<double> times;
  const double start = seconds(CLOCK_MONOTONIC);
  while (times.size() < 5 || seconds(CLOCK_MONOTONIC) - start < budget_seconds) {
    const double before = seconds(clock);
    f();
    times.push_back(seconds(clock) - before);
  }
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  return {.median = times[n / 2], .fast = times[n / 10], .slow = times[n - 1 - n / 10]};
}

class Bench {
 public:
  Bench(int threads, double budget)
      : pool_(threads),
        clock_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC),
        budget_(budget) {
    if (threads > 1) stream_.pool = &pool_;
    peak_ = measure_peak();
    fmt::print("{} threads, float32, multiply-add peak {:.1f} GFLOP/s\n", threads, peak_ * 1e-9);
    fmt::print("{:<44} {:>10} {:>10} {:>10} {:>9} {:>6}\n", "case", "us", "fast", "slow", "GFLOP/s",
               "peak");
  }

  const Stream& stream() const { return stream_; }

  template <class F>
  Timing report(const std::string& name, double flops, F&& f) {
    Timing t = measure(clock_, budget_, f);
    fmt::print("{:<44} {:>10.1f} {:>10.1f} {:>10.1f} {:>9.1f} {:>5.0f}%\n", name, t.median * 1e6,
               t.fast * 1e6, t.slow * 1e6, flops / t.median * 1e-9, 100 * flops / t.median / peak_);
    return t;
  }

 private:
  // Independent chains of multiply-adds in registers, on every thread.
  double measure_peak() {
    constexpr int kChains = 12, kRounds = 20000;
    std::atomic<float> sink = 0;
    Timing t = measure(clock_, budget_, [&] {
      parallel_for(stream_, num_threads(stream_), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          Vec16 acc[kChains];
          for (auto& a : acc) a = simd::broadcast(static_cast<float>(i + 1));
          const Vec16 x = simd::broadcast(0.999f), y = simd::broadcast(1e-3f);
          for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
            for (int c = 0; c < kChains; ++c) acc[c] = simd::fma(acc[c], x, y);
          }
          Vec16 sum = simd::zero();
          for (auto& a : acc) sum = simd::add(sum, a);
          sink = simd::reduce_add(sum);
        }
      });
    });
    return 2.0 * kLanes * kChains * kRounds * num_threads(stream_) / t.fast;
  }

  ThreadPool pool_;
  Stream stream_;
  clockid_t clock_;
  double budget_;
  double peak_ = 1;
};

struct Array {
  Buffer memory;
  Matrix view;
  Array(int64_t rows, int64_t cols, std::mt19937& rng, float scale = 1)
      : memory(static_cast<size_t>(rows * cols) * sizeof(float)),
        view(memory.as<float>().data(), rows, cols) {
    std::normal_distribution<float> normal(0, scale);
    for (float& x : memory.as<float>()) x = normal(rng);
  }
};

void check(bool good, const char* what) {
  if (good) return;
  fmt::print(stderr, "kernels_bench: {} is wrong\n", what);
  std::exit(1);
}

double worst_error(ConstMatrix a, ConstMatrix b) {
  double worst = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) {
      worst = std::max(worst, std::abs(double{a.row(r)[c]} - b.row(r)[c]));
    }
  }
  return worst;
}

void bench_linear(Bench& bench, int64_t tokens, int64_t in, int64_t out, bool gradients) {
  std::mt19937 rng(1);
  Array x(tokens, in, rng), w(out, in, rng), y(tokens, out, rng), dx(tokens, in, rng),
      dw(out, in, rng);
  Buffer panels(static_cast<size_t>(packed_weight_size(out, in)) * sizeof(float));
  PackedWeight packed = pack_weight(bench.stream(), w.view, panels.as<float>());
  Buffer scratch(linear_grad_workspace_bytes(tokens, out, in));
  Workspace workspace(scratch.as<std::byte>());
  const double flops = 2.0 * static_cast<double>(tokens * in * out);
  const std::string shape = fmt::format("[{}, {}] -> {}", tokens, in, out);

  const int64_t checked = std::min<int64_t>(tokens, 9);
  Array expected(checked, out, rng);
  ref::linear(x.view.slice_rows(0, checked), w.view, {}, expected.view);
  linear(bench.stream(), x.view, packed, {}, y.view);
  check(worst_error(y.view.slice_rows(0, checked), expected.view) < 1e-3, "linear");

  bench.report("linear           " + shape, flops,
               [&] { linear(bench.stream(), x.view, packed, {}, y.view); });
  if (!gradients) return;
  bench.report("linear, dx       " + shape, flops, [&] {
    linear_grad_input(bench.stream(), workspace, y.view, w.view, dx.view, false);
  });
  bench.report("linear, dW       " + shape, flops,
               [&] { linear_grad_weight(bench.stream(), workspace, y.view, x.view, dw.view); });
}

// `sequences` of `context` positions; `queries` rows at the end of each (== context: training).
void bench_attention(Bench& bench, int64_t sequences, int context, int queries, int heads,
                     int kv_heads, int head_dim) {
  constexpr int kBlockTokens = 16;
  const int blocks = (context + kBlockTokens - 1) / kBlockTokens;
  std::mt19937 rng(2);
  const int64_t rows = sequences * queries, all = sequences * context;
  Array q(rows, heads * head_dim, rng), out(rows, heads * head_dim, rng),
      dout(rows, heads * head_dim, rng), lse(rows, heads, rng), dq(rows, heads * head_dim, rng);
  Array k(all, kv_heads * head_dim, rng), v(all, kv_heads * head_dim, rng),
      dk(rows, kv_heads * head_dim, rng), dv(rows, kv_heads * head_dim, rng);
  Array keys(sequences * blocks, kv_heads * head_dim * kBlockTokens, rng),
      values(sequences * blocks, kv_heads * head_dim * kBlockTokens, rng);
  KvLayer kv{keys.view.data, values.view.data, kBlockTokens, kv_heads, head_dim};

  std::vector<int32_t> positions, all_positions, offsets{0}, all_offsets{0}, tables;
  double scores = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int p = 0; p < context; ++p) all_positions.push_back(p);
    for (int p = context - queries; p < context; ++p) {
      positions.push_back(p);
      scores += p + 1;
    }
    offsets.push_back(static_cast<int32_t>(positions.size()));
    all_offsets.push_back(static_cast<int32_t>(all_positions.size()));
    for (int b = 0; b < blocks; ++b) tables.push_back(static_cast<int32_t>(s * blocks + b));
  }
  AttentionBatch whole{all_positions, all_offsets, tables, blocks};
  AttentionBatch batch{positions, offsets, tables, blocks};
  const Stream& stream = bench.stream();
  kv_write(stream, k.view, v.view, whole, kv);
  Buffer scratch(
      attention_workspace_bytes(num_threads(stream), heads, kv_heads, head_dim, context));
  Workspace workspace(scratch.as<std::byte>());
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  const double flops = 4.0 * scores * heads * head_dim;
  const std::string shape = fmt::format("{} x {} of {}, {}/{} heads of {}", sequences, queries,
                                        context, heads, kv_heads, head_dim);

  auto forward = [&] {
    attention(stream, workspace, q.view, heads, scale, batch, kv, context, out.view, lse.view);
  };
  Array expected(rows, heads * head_dim, rng);
  ref::attention(q.view, heads, scale, batch, kv, expected.view, {});
  forward();
  check(worst_error(out.view, expected.view) < 1e-3, "attention");
  bench.report("attention        " + shape, flops, forward);
  if (queries != context) return;
  bench.report("attention, grads " + shape, 2.5 * flops, [&] {
    attention_backward(stream, workspace, q.view, out.view, lse.view, dout.view, heads, scale,
                       batch, kv, context, dq.view, dk.view, dv.view);
  });
  bench.report("kv_write         " + shape, 0,
               [&] { kv_write(stream, k.view, v.view, whole, kv); });
}

void bench_rows(Bench& bench, int64_t tokens, int64_t dim, int64_t ffn, int64_t vocab) {
  std::mt19937 rng(3);
  const Stream& stream = bench.stream();
  Array x(tokens, dim, rng), y(tokens, dim, rng), gate(tokens, ffn, rng), up(tokens, ffn, rng),
      z(tokens, ffn, rng);
  Array weight(vocab, dim, rng, 0.1f), dweight(vocab, dim, rng), dx(tokens, dim, rng);
  std::vector<float> norm(static_cast<size_t>(dim), 1.0f), dnorm(norm),
      inv(static_cast<size_t>(tokens)), lp(inv), lse(inv), entropy(inv), dlp(inv.size(), 0.5f);
  bench.report(fmt::format("rms_norm         [{}, {}]", tokens, dim), 0,
               [&] { rms_norm(stream, x.view, norm, 1e-5f, y.view, inv); });
  bench.report(fmt::format("rms_norm, grads  [{}, {}]", tokens, dim), 0,
               [&] { rms_norm_backward(stream, x.view, norm, inv, y.view, dx.view, true, dnorm); });
  bench.report(fmt::format("swiglu           [{}, {}]", tokens, ffn), 0,
               [&] { swiglu(stream, gate.view, up.view, z.view); });
  bench.report(fmt::format("swiglu, grads    [{}, {}]", tokens, ffn), 0,
               [&] { swiglu_backward(stream, gate.view, up.view, z.view, z.view, z.view); });
  Buffer panels(static_cast<size_t>(packed_weight_size(vocab, dim)) * sizeof(float));
  PackedWeight packed = pack_weight(stream, weight.view, panels.as<float>());
  Buffer scratch(linear_logprob_workspace_bytes(tokens, vocab, dim));
  Workspace workspace(scratch.as<std::byte>());
  std::vector<int32_t> targets(static_cast<size_t>(tokens), 1);
  const double flops = 2.0 * static_cast<double>(tokens * vocab * dim);
  bench.report(fmt::format("linear_logprob   [{}, {}] -> {}", tokens, dim, vocab), flops, [&] {
    linear_logprob(stream, workspace, x.view, packed, targets, 1, lp, lse, entropy);
  });
  bench.report(fmt::format("linear_logprob, grads [{}, {}] -> {}", tokens, dim, vocab), 3 * flops,
               [&] {
                 linear_logprob_backward(stream, workspace, x.view, packed, weight.view, targets, 1,
                                         lse, entropy, dlp, {}, dx.view, dweight.view);
               });
}

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  const double budget = (argc > 2 ? std::atof(argv[2]) : 150) * 1e-3;
  Bench bench(threads, budget);
  for (auto [in, out] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {128, 384}, {384, 128}, {128, 128}, {128, 64}, {128, 512}}) {
    bench_linear(bench, 2048, in, out, /*gradients=*/true);
  }
  bench_linear(bench, 2048, 1024, 1024, /*gradients=*/true);
  for (int64_t tokens : {1, 2, 4, 8, 64, 128})
    bench_linear(bench, tokens, 128, 384, /*gradients=*/false);
  bench_linear(bench, 64, 64, 64, /*gradients=*/false);
  bench_attention(bench, 16, 128, 128, 4, 2, 32);
  bench_attention(bench, 2, 1024, 1024, 4, 2, 32);
  bench_attention(bench, 16, 128, 128, 8, 4, 64);
  bench_attention(bench, 64, 128, 1, 4, 2, 32);
  bench_attention(bench, 64, 100, 1, 8, 4, 8);
  bench_rows(bench, 2048, 128, 384, 512);
  return 0;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) { return tailrace::run(argc, argv); }
