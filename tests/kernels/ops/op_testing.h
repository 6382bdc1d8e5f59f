// What the tests of the ops share: matrices between canaries, comparisons that name the worst
// element, and streams of one to three threads.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/device.h"
#include "kernels/base/isa.h"
#include "kernels/base/memory.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace::op_testing {

constexpr float kUnit = 0x1p-24f;  // half a unit in the last place of 1: the error of one rounding

using Rng = std::mt19937;

// A matrix whose rows are longer than its columns; all that lies between and around is a canary.
class GuardedMatrix {
 public:
  GuardedMatrix(int64_t rows, int64_t cols)
      : rows_(rows),
        cols_(cols),
        memory_(static_cast<size_t>(rows * stride() + 2 * kGuard), kCanary) {
    fill(0);
  }
  GuardedMatrix(int64_t rows, int64_t cols, Rng& rng, float scale = 1) : GuardedMatrix(rows, cols) {
    std::normal_distribution<float> normal(0, scale);
    for_each([&](float& x) { x = normal(rng); });
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  Matrix view() { return {memory_.data() + kGuard, rows_, cols_, stride()}; }
  ConstMatrix view() const { return {memory_.data() + kGuard, rows_, cols_, stride()}; }
  float& at(int64_t r, int64_t c) { return view().row(r)[c]; }
  float at(int64_t r, int64_t c) const { return view().row(r)[c]; }

  void fill(float value) {
    for_each([&](float& x) { x = value; });
  }
  GuardedMatrix magnitude() const {
    GuardedMatrix result = *this;
    result.for_each([](float& x) { x = std::abs(x); });
    return result;
  }
  float max_magnitude() const {
    float max = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) max = std::max(max, std::abs(at(r, c)));
    }
    return max;
  }

  void expect_canaries() const {
    int64_t broken = 0;
    for (size_t i = 0; i < memory_.size(); ++i) {
      const int64_t offset = static_cast<int64_t>(i) - kGuard;
      const bool inside = offset >= 0 && offset / stride() < rows_ && offset % stride() < cols_;
      if (!inside && memory_[i] != kCanary) ++broken;
    }
    EXPECT_EQ(broken, 0) << "writes outside [" << rows_ << ", " << cols_ << "]";
  }

 private:
  static constexpr int64_t kGuard = 32, kGap = 5;
  static constexpr float kCanary = -8.125e30f;

  int64_t stride() const { return cols_ + kGap; }
  template <class F>
  void for_each(F&& f) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) f(view().row(r)[c]);
    }
  }

  int64_t rows_, cols_;
  std::vector<float> memory_;
};

inline std::vector<float> random_vector(int64_t n, Rng& rng, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// |actual - expected| <= tolerance(r, c) everywhere; says where it is worst.
template <std::invocable<int64_t, int64_t> Tolerance>
void expect_close(ConstMatrix actual, ConstMatrix expected, Tolerance&& tolerance,
                  const char* what) {
  ASSERT_EQ(actual.rows, expected.rows) << what;
  ASSERT_EQ(actual.cols, expected.cols) << what;
  double worst = -1;
  int64_t row = 0, col = 0;
  for (int64_t r = 0; r < actual.rows; ++r) {
    for (int64_t c = 0; c < actual.cols; ++c) {
      const double error = std::abs(double{actual.row(r)[c]} - expected.row(r)[c]);
      const double ratio = std::isfinite(error) ? error / tolerance(r, c) : INFINITY;
      if (ratio > worst) worst = ratio, row = r, col = c;
    }
  }
  if (worst < 0) return;
  EXPECT_LE(worst, 1.0) << what << ": worst at (" << row << ", " << col
                        << "): " << actual.row(row)[col] << ", expected " << expected.row(row)[col]
                        << ", tolerance " << tolerance(row, col);
}
inline void expect_close(ConstMatrix actual, ConstMatrix expected, double tolerance,
                         const char* what) {
  expect_close(
      actual, expected, [tolerance](int64_t, int64_t) { return tolerance; }, what);
}

inline void expect_same_bits(ConstMatrix actual, ConstMatrix expected, const char* what) {
  ASSERT_EQ(actual.rows, expected.rows) << what;
  ASSERT_EQ(actual.cols, expected.cols) << what;
  for (int64_t r = 0; r < actual.rows; ++r) {
    for (int64_t c = 0; c < actual.cols; ++c) {
      ASSERT_EQ(std::memcmp(&actual.row(r)[c], &expected.row(r)[c], sizeof(float)), 0)
          << what << ": bits differ at (" << r << ", " << c << "): " << actual.row(r)[c]
          << ", expected " << expected.row(r)[c];
    }
  }
}

inline ConstMatrix as_row(std::span<const float> v) {
  return {v.data(), 1, static_cast<int64_t>(v.size())};
}

// A stream over its own pool; 1 thread: no pool.
class TestStream {
 public:
  explicit TestStream(int num_threads) {
    if (num_threads > 1) pool_ = std::make_unique<ThreadPool>(num_threads);
    stream_.pool = pool_.get();
  }
  const Stream& get() const { return stream_; }
  // Loops that were really divided among its threads.
  int64_t num_divided() const { return pool_ ? pool_->num_divided() : 0; }

 private:
  std::unique_ptr<ThreadPool> pool_;
  Stream stream_;
};

// Holds the beats of `op` against its work: `work` multiply-adds (counted low, by at most a half)
// in `loops` parallel loops, in rounds of at most `round`. No thread is silent for longer than a
// WorkPulse allows and a round, and beats are not many more than that asks for.
template <std::invocable<const Stream&> Op>
void expect_beats(int64_t work, int64_t loops, int64_t round, const Op& op) {
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    Pulse pulse;
    {
      const PulseScope scope(pulse);
      op(stream.get());
    }
    // A part of a loop ends with work for which it has not beaten, and a loop begins with a beat.
    const int64_t least = work / (WorkPulse::kWork + round) - loops * (threads - 1);
    EXPECT_GT(least, 2 * loops) << "too little work to say anything";
    EXPECT_GE(static_cast<int64_t>(pulse.beats()), least) << threads << " threads";
    EXPECT_LE(static_cast<int64_t>(pulse.beats()), loops + 2 * work / WorkPulse::kWork)
        << threads << " threads";
    EXPECT_EQ(stream.num_divided() > 0, threads > 1);
  }
}

// Exactly the bytes that an op's ..._workspace_bytes() asked for, filled with NaN.
class TestWorkspace {
 public:
  explicit TestWorkspace(size_t bytes) : buffer_(bytes), workspace_(buffer_) {
    for (float& x : buffer_.as<float>()) x = NAN;
  }
  Workspace& get() { return workspace_; }

 private:
  Buffer buffer_;
  Workspace workspace_;
};

// A weight in the form that ops read.
struct Packed {
  Buffer memory;
  Weight weight;
  explicit Packed(const GuardedMatrix& w, Dtype dtype = Dtype::kF32)
      : memory(weight_bytes(dtype, w.rows(), w.cols())),
        weight(pack_weight(Stream{}, w.view(), dtype, memory.as<std::byte>())) {}
};

inline GuardedMatrix rounded_to_bf16(const GuardedMatrix& from) {
  GuardedMatrix rounded = from;
  for (int64_t r = 0; r < from.rows(); ++r)
    for (int64_t c = 0; c < from.cols(); ++c) rounded.at(r, c) = to_float(to_bf16(from.at(r, c)));
  return rounded;
}

// As a product with a weight of this dtype reads its other operand on this machine.
inline GuardedMatrix operand_of(const GuardedMatrix& from, Dtype weight) {
  return weight == Dtype::kBF16 && isa() == Isa::kAvx512Bf16 ? rounded_to_bf16(from) : from;
}

// The slope of `loss` at `at`, which it reads; the error is about h^2 and 1e-7 * 10 / h.
template <class Loss>
double central_difference(const Loss& loss, float& at) {
  constexpr float h = 0x1p-8f;
  const float kept = at;
  at = kept + h;
  const double up = loss();
  at = kept - h;
  const double down = loss();
  at = kept;
  return (up - down) / (2 * double{h});
}

}  // namespace tailrace::op_testing
