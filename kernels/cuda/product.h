// Products with a float32 operand of their own on the left, of forward in float32 and of backward:
// what gemm_f32.cu and gemm_grad.cu take.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace::cuda {

// Rows by expert: those of group g are [offsets[g], offsets[g + 1]), in memory of the device.
// Without offsets all rows are of one group.
struct RowGroups {
  const int32_t* offsets = nullptr;
  int count = 0;

  // As many tiles of `tile` rows as all groups together can have, whatever the offsets: each group
  // with rows begins one of its own.
  int64_t most_tiles(int64_t rows, int64_t tile) const {
    if (offsets == nullptr) return (rows + tile - 1) / tile;
    const int64_t with_rows = count < rows ? count : rows;
    return (rows - with_rows) / tile + with_rows;
  }
};

// Which operands lie [k][...], with rows of k, and which [...][k]; and along what there are groups.
enum class ProductKind {
  kForward,     // y  = x W^T:   a [m][k], b [n][k], groups of m
  kGradInput,   // dx = dy W:    a [m][k], b [k][n], groups of m
  kGradWeight,  // dW = dy^T x:  a [k][m], b [k][n], groups of k
};

// c[m, n] (+)= bias[n] + sum over k of a b. Rows of a and b begin at multiples of 16 bytes.
template <class B>
struct Product {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const B* b = nullptr;
  int64_t b_stride = 0;
  const float* bias = nullptr;  // [n] or null
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t m = 0, n = 0, k = 0;
  bool add = false;  // the finished sum to c
  RowGroups groups = {};
  // From what belongs to a group to what belongs to the next, in elements: of b where groups are of
  // m, of c where they are of k.
  int64_t group_stride = 0;
};

void multiply_f32(const Stream& stream, ProductKind kind, const Product<float>& product);

// Tiles of c: they change no bits. By shape, but for tests.
enum class GradTiles { kByShape, kSmall, kLarge };
// kGradInput or kGradWeight, without a bias: a is rounded to bfloat16 when it is loaded.
void multiply_grad(const Stream& stream, ProductKind kind, const Product<Bf16>& product,
                   GradTiles tiles = GradTiles::kByShape);

}  // namespace tailrace::cuda
