#include "bench/kernels/multiply_add_rate.h"

#include <algorithm>
#include <atomic>

#include "bench/report/report.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace tailrace {
namespace {

#if defined(__AVX512F__)
// Chains as in float_rate(), each of 32 multiply-adds of bf16 into 16 floats.
constexpr int kBf16Chains = 12;
__attribute__((target("avx512bf16"))) float bf16_chains(int rounds) {
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  __m512 acc[kBf16Chains];
  for (auto& a : acc) a = _mm512_setzero_ps();
  for (int r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (auto& a : acc) a = _mm512_dpbf16_ps(a, ones, ones);
  }
  Vec16 sum = simd::zero();
  for (auto& a : acc) sum = simd::add(sum, {a});
  return simd::reduce_add(sum);
}
#endif

// Independent chains of multiply-adds.
double float_rate(const Stream& stream, double seconds) {
  // A chain waits for its last multiply-add, four cycles on recent x86, and two can start in each:
  // fewer than eight would measure the wait.
  constexpr int kChains = 12, kRounds = 20000;
  std::atomic<float> sink = 0;
  const std::vector<double> times = seconds_of(stream, seconds, [&] {
    parallel_for(stream, num_threads(stream), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Vec16 acc[kChains];
        for (auto& a : acc) a = simd::broadcast(static_cast<float>(i + 1));
        // a x + y tends to 1: no infinities, and no denormals, which are slow.
        const Vec16 x = simd::broadcast(0.999f), y = simd::broadcast(1e-3f);
        for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
          for (int c = 0; c < kChains; ++c) acc[c] = simd::fma(acc[c], x, y);
        }
        Vec16 sum = simd::zero();
        for (auto& a : acc) sum = simd::add(sum, a);
        // So that the compiler cannot leave the work out.
        sink = simd::reduce_add(sum);
      }
    });
  });
  // The fastest run: a limit is what the machine can do, not what it did while others were at it.
  return 2.0 * kLanes * kChains * kRounds * num_threads(stream) / std::ranges::min(times);
}

double bf16_rate([[maybe_unused]] const Stream& stream, [[maybe_unused]] double seconds) {
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  constexpr int kRounds = 20000;
  std::atomic<float> sink = 0;
  const std::vector<double> times = seconds_of(stream, seconds, [&] {
    parallel_for(stream, num_threads(stream), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sink = bf16_chains(kRounds);
    });
  });
  return 2.0 * 2 * kLanes * kBf16Chains * kRounds * num_threads(stream) / std::ranges::min(times);
#else
  return 0;
#endif
}

}  // namespace

std::vector<double> seconds_of(const Stream& stream, double seconds,
                               const std::function<void()>& kernel) {
  kernel();  // warm up
  std::vector<double> times;
  const Stopwatch total;
  while (times.size() < 5 || total.seconds() < seconds) {
    const Stopwatch watch(num_threads(stream) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
    kernel();
    times.push_back(watch.seconds());
  }
  return times;
}

double multiply_add_rate(const Stream& stream, Dtype weight, double seconds) {
  return weight == Dtype::kBF16 ? bf16_rate(stream, seconds) : float_rate(stream, seconds);
}

}  // namespace tailrace
