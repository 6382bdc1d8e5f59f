// What the tests of the router on a GPU share: shapes, and arrays between canaries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/device_array.h"

namespace tailrace::cuda_testing {

struct RouterShape {
  int64_t tokens, experts, k;
};
inline const std::vector<RouterShape> kRouterShapes = {{0, 4, 2},   {1, 1, 1},    {1, 8, 2},
                                                       {3, 5, 5},   {7, 16, 1},   {33, 17, 3},
                                                       {21, 60, 4}, {10, 128, 8}, {5, 513, 8}};

inline size_t size_at(int64_t i) { return static_cast<size_t>(i); }

// An array of results whose neighbours in memory are canaries.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(int64_t size) : GuardedArray(std::vector<T>(size_at(size), T{-1})) {}
  explicit GuardedArray(const std::vector<T>& values)
      : size_(values.size()), memory_(guarded(values)) {}

  std::span<T> span() { return memory_.span().subspan(kGuard, size_); }
  std::vector<T> get() const {
    const std::vector<T> all = memory_.get();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i < kGuard || i >= kGuard + size_) {
        EXPECT_EQ(all[i], T{-7}) << "a write outside";
      }
    }
    return {all.begin() + kGuard, all.begin() + kGuard + static_cast<std::ptrdiff_t>(size_)};
  }

 private:
  static constexpr size_t kGuard = 8;
  static std::vector<T> guarded(const std::vector<T>& values) {
    std::vector<T> all(values.size() + 2 * kGuard, T{-7});
    std::ranges::copy(values, all.begin() + kGuard);
    return all;
  }
  size_t size_;
  DeviceArray<T> memory_;
};

// Sequences of unequal lengths, of which some are empty, the first and the last among them.
inline std::vector<int32_t> unequal_sequences(int64_t tokens, int count) {
  std::vector<int32_t> offsets = {0, 0};
  for (int s = 1; s < count - 2; ++s)
    offsets.push_back(static_cast<int32_t>(tokens * s * s / ((count - 2) * (count - 2))));
  offsets.push_back(static_cast<int32_t>(tokens));
  offsets.push_back(static_cast<int32_t>(tokens));
  return offsets;
}

}  // namespace tailrace::cuda_testing
