// The product with a bfloat16 weight, on tensor cores. See gemm.cu.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/product.h"

namespace tailrace::cuda {

// y[t, o] = bias[o] + sum over i of x[t, i] W[o, i], in memory of the device. Rows begin at
// multiples of 16 bytes; those of W are padded with zeros to `weight_stride`, a multiple of
// kWeightAlignment, those of x end at `in`.
struct Bf16Product {
  const void* x = nullptr;  // [tokens, in], float32 (rounded when it is loaded) or bfloat16
  bool x_is_float = false;
  int64_t x_stride = 0;
  const Bf16* weight = nullptr;  // [out, weight_stride]
  int64_t weight_stride = 0;
  const float* bias = nullptr;  // [out] or null
  void* y = nullptr;            // [tokens, out], float32 or bfloat16
  bool y_is_float = false;
  int64_t y_stride = 0;
  int64_t tokens = 0, out = 0, in = 0;
  bool add = false;  // the finished sum to y, which is float32
  // Groups of tokens; the weight of a group lies so many elements behind that of the one before.
  RowGroups groups = {};
  int64_t group_stride = 0;
};
// Which kernel: it changes no bits. By shape, but for tests, which hold one against the other.
enum class GemmTiles { kByShape, kFewTokens, kManyTokens };
void multiply_bf16(const Stream& stream, const Bf16Product& product,
                   GemmTiles tiles = GemmTiles::kByShape);

}  // namespace tailrace::cuda
