// Types of elements, in files and in memory, and bfloat16.
//
// Thread: any.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/base/check.h"

namespace tailrace {

enum class Dtype : uint8_t { kF32, kF16, kBF16, kI64, kI32, kU8 };

constexpr int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kU8:
      return 1;
  }
  TR_CHECK(false, "no dtype");
}

// The upper half of a float: its sign, its exponent, 7 bits of its fraction.
struct Bf16 {
  uint16_t bits;
};

template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) return Dtype::kF32;
  if constexpr (std::is_same_v<T, Bf16>) return Dtype::kBF16;
  if constexpr (std::is_same_v<T, int32_t>) return Dtype::kI32;
}

constexpr float to_float(float x) { return x; }
constexpr float to_float(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
// To the nearest, of two the even one; NaN stays NaN.
constexpr Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return {static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded)};
}

}  // namespace tailrace
