// What the tests of CUDA ops share: arrays and matrices in memory of the device, which the host
// fills and reads by copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/cuda/provide.h"
#ifdef TAILRACE_EMULATED_GPU
#include "kernels/cuda/host/emulation_control.h"
#endif

namespace tailrace::cuda_testing {

inline constexpr Device kGpu{DeviceKind::kCuda, 0};

inline Stream gpu_stream() {
  static const bool provided = [] {
    provide_cuda();
    return true;
  }();
  static_cast<void>(provided);
  return {.device = kGpu};
}

// What the emulation and its checker found since the last call. A real GPU finds nothing.
inline void expect_no_findings() {
#ifdef TAILRACE_EMULATED_GPU
  for (const std::string& error : cuda::emulation::take_errors()) ADD_FAILURE() << error;
#endif
}

// A kernel that reads there before it writes makes a mistake; of the checked emulation's alone.
inline void forbid_reading(void* memory, size_t bytes) {
#ifdef TAILRACE_EMULATED_GPU
  cuda::emulation::mark_unwritten(memory, bytes);
#else
  static_cast<void>(memory), static_cast<void>(bytes);
#endif
}

// Elements in memory of the device. Move-only. Full of 0xFF bytes (NaN, -1) where nothing is given.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : DeviceArray(filled(size)) {}
  explicit DeviceArray(const std::vector<T>& from)
      : memory_((gpu_stream(), from.size() * sizeof(T)), kGpu), size_(from.size()) {
    set(from);
  }

  size_t size() const { return size_; }
  T* data() { return reinterpret_cast<T*>(memory_.bytes().data); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.bytes().data); }
  std::span<T> span() { return {data(), size_}; }  // for arguments of ops: memory of the device
  std::span<const T> span() const { return {data(), size_}; }

  void set(const std::vector<T>& from) {
    copy(gpu_stream(), memory_.bytes(), bytes_of(std::span<const T>(from)));
    wait(gpu_stream());
    // A Buffer is longer than it says.
    const size_t bytes = size_ * sizeof(T);
    forbid_reading(memory_.bytes().data + bytes, Workspace::aligned(bytes) - bytes);
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    copy(gpu_stream(), bytes_of(std::span<T>(values)), memory_.bytes());
    wait(gpu_stream());
    return values;
  }

 private:
  static std::vector<T> filled(size_t size) {
    std::vector<T> values(size);
    std::memset(static_cast<void*>(values.data()), 0xFF, size * sizeof(T));
    return values;
  }

  Buffer memory_;
  size_t size_;
};

inline std::vector<float> random_floats(int64_t n, std::mt19937& rng, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// A matrix of the device whose rows are longer than its columns. All that lies between and around
// is 0xFF bytes: a NaN to who reads it, a canary to who writes it.
template <class T>
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t rows, int64_t cols)
      : rows_(rows), cols_(cols), memory_(static_cast<size_t>(rows * stride() + 2 * kGuard)) {}
  // [rows, cols] without gaps, rounded to T.
  DeviceMatrix(int64_t rows, int64_t cols, const std::vector<float>& values)
      : DeviceMatrix(rows, cols) {
    set(values);
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  Tensor view() {
    Tensor tensor(reinterpret_cast<std::byte*>(memory_.data() + kGuard), rows_, cols_,
                  dtype_of<T>(), kGpu);
    tensor.stride = stride();
    return tensor;
  }
  ConstTensor view() const {
    ConstTensor tensor(reinterpret_cast<const std::byte*>(memory_.data() + kGuard), rows_, cols_,
                       dtype_of<T>(), kGpu);
    tensor.stride = stride();
    return tensor;
  }

  void set(const std::vector<float>& values) {
    std::vector<T> all = memory_.get();
    for_each([&](size_t at, size_t i) { all[at] = rounded(values[i]); });
    memory_.set(all);
    forbid_reading(memory_.data(), kGuard * sizeof(T));
    for (int64_t r = 0; r < rows_; ++r)
      forbid_gap(kGuard + r * stride() + cols_, kGuard + (r + 1) * stride());
    forbid_gap(kGuard + rows_ * stride(), static_cast<int64_t>(memory_.size()));
  }
  // Values without gaps, as floats.
  std::vector<float> get() const {
    const std::vector<T> all = memory_.get();
    std::vector<float> values(static_cast<size_t>(rows_ * cols_));
    for_each([&](size_t at, size_t i) { values[i] = to_float(all[at]); });
    return values;
  }

  void expect_canaries() const {
    const std::vector<T> all = memory_.get();
    std::vector<bool> inside(all.size());
    for_each([&](size_t at, size_t) { inside[at] = true; });
    int64_t broken = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      T canary;
      std::memset(static_cast<void*>(&canary), 0xFF, sizeof(T));
      broken += !inside[i] && std::memcmp(&all[i], &canary, sizeof(T)) != 0;
    }
    EXPECT_EQ(broken, 0) << "writes outside [" << rows_ << ", " << cols_ << "]";
  }

 private:
  static constexpr int64_t kGuard = 32;

  static T rounded(float x) {
    if constexpr (std::is_same_v<T, Bf16>) return to_bf16(x);
    if constexpr (!std::is_same_v<T, Bf16>) return static_cast<T>(x);
  }
  void forbid_gap(int64_t begin, int64_t end) {
    forbid_reading(memory_.data() + begin, static_cast<size_t>(end - begin) * sizeof(T));
  }
  int64_t stride() const {
    constexpr int64_t kStep = 16 / static_cast<int64_t>(sizeof(T));
    return (cols_ / kStep + 2) * kStep;
  }
  template <class F>
  void for_each(const F& f) const {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c)
        f(static_cast<size_t>(kGuard + r * stride() + c), static_cast<size_t>(r * cols_ + c));
  }

  int64_t rows_, cols_;
  DeviceArray<T> memory_;
};

}  // namespace tailrace::cuda_testing
