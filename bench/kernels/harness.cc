#include "bench/kernels/harness.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "bench/kernels/multiply_add_rate.h"
#include "bench/report/program.h"
#include "kernels/base/isa.h"
#include "kernels/cpu/simd.h"

namespace tailrace {
KernelHarness::KernelHarness(Report report, int threads, double seconds, std::string only)
    : report_(std::move(report)), pool_(threads), seconds_(seconds), only_(std::move(only)) {
  if (threads > 1) stream_.pool = &pool_;
}

void KernelHarness::limits() {
  const std::string name = "machine";
  if (!wants(name)) return;
  constexpr double kBytes = 512e6;  // far more than a cache holds
  if (peak_ == 0) peak_ = multiply_add_rate(stream_, Dtype::kF32, seconds_);
  report_.add(name, "multiply-add", "GFLOP/s", {1e-9 * peak_});
  if (const double peak = multiply_add_rate(stream_, Dtype::kBF16, seconds_); peak > 0)
    report_.add(name, "multiply-add of bf16", "GFLOP/s", {1e-9 * peak});
  report_.add(name, "read of memory", "GB/s", {1e-9 * read_rate(kBytes)});
  report_.add(name, "copy of memory", "GB/s", {1e-9 * copy_rate(kBytes)});
}

void KernelHarness::products(const std::string& name, const std::string& metric, double flops,
                             const std::function<void()>& kernel, Dtype weight) {
  if (peak_ == 0) peak_ = multiply_add_rate(stream_, Dtype::kF32, seconds_);
  const bool in_pairs = weight == Dtype::kBF16 && isa() == Isa::kAvx512Bf16;
  if (in_pairs && pairs_peak_ == 0)
    pairs_peak_ = multiply_add_rate(stream_, Dtype::kBF16, seconds_);
  std::vector<double> rates = seconds_of(stream_, seconds_, kernel);
  for (double& value : rates) value = 1e-9 * flops / value;
  report_.add(name, metric, "GFLOP/s", std::move(rates), 1e-9 * (in_pairs ? pairs_peak_ : peak_));
}

void KernelHarness::traffic(const std::string& name, const std::string& metric, double bytes,
                            const std::function<void()>& kernel) {
  // A copy reads one half of the bytes and writes the other.
  const double limit = copy_rate(bytes);
  std::vector<double> rates = seconds_of(stream_, seconds_, kernel);
  for (double& value : rates) value = 1e-9 * bytes / value;
  report_.add(name, metric, "GB/s", std::move(rates), 1e-9 * limit);
}

double KernelHarness::read_rate(double bytes) const {
  const auto floats = static_cast<int64_t>(bytes / sizeof(float));
  Buffer from(static_cast<size_t>(floats) * sizeof(float));
  const float* data = from.as<float>().data();
  std::atomic<float> sink = 0;
  const std::vector<double> times = seconds_of(stream_, seconds_, [&] {
    parallel_for(stream_, floats / (4 * kLanes), 1 << 12, [&](int64_t begin, int64_t end) {
      Vec16 sums[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
      for (int64_t i = begin; i < end; ++i)
        for (int64_t part = 0; part < 4; ++part)
          sums[part] = simd::add(sums[part], simd::load(data + (4 * i + part) * kLanes));
      sink = simd::reduce_add(simd::add(simd::add(sums[0], sums[1]), simd::add(sums[2], sums[3])));
    });
  });
  return bytes / std::ranges::min(times);
}

double KernelHarness::copy_rate(double bytes) {
  const auto half = static_cast<int64_t>(bytes / 2);
  // By size, since a copy within a cache is several times as fast as one from memory.
  double& rate = copy_rates_[half];
  if (rate > 0) return rate;
  Buffer from(static_cast<size_t>(half)), to(static_cast<size_t>(half));
  const std::vector<double> times = seconds_of(stream_, seconds_, [&] {
    parallel_for(stream_, half, 1 << 12, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  });
  return rate = bytes / spread(times).median;
}

RandomMatrix::RandomMatrix(int64_t rows, int64_t cols, std::mt19937& rng, float scale)
    : memory(static_cast<size_t>(rows * cols) * sizeof(float)),
      view(memory.as<float>().data(), rows, cols) {
  std::normal_distribution<float> normal(0, scale);
  for (float& x : memory.as<float>()) x = normal(rng);
}

void require_close(ConstMatrix actual, ConstMatrix expected, int64_t terms,
                   const std::string& what) {
  double worst = 0, largest = 0;
  for (int64_t r = 0; r < expected.rows; ++r) {
    for (int64_t c = 0; c < expected.cols; ++c) {
      const double error = std::abs(double{actual.row(r)[c]} - expected.row(r)[c]);
      if (!(error <= worst)) worst = error;  // a NaN too
      largest = std::max(largest, std::abs(double{expected.row(r)[c]}));
    }
  }
  const double bound = 8 * std::numeric_limits<float>::epsilon() *
                       std::sqrt(static_cast<double>(terms)) * std::max(largest, 1e-30);
  require(worst <= bound, "{} is wrong by {} of {}; sums of {} floats may differ by {}", what,
          worst, largest, terms, bound);
}

}  // namespace tailrace
