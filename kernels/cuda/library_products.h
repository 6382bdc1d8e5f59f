// Large products by a library (cuBLASLt), behind an interface: what decides which of them it makes
// (product_table.h) is tested without the library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/product.h"

namespace tailrace::cuda {

// c[m, n] (+)= sum over k of a b, in memory of the device, row-major; `kind` says how a and b lie.
// Sums are float32; a finished one is added to c, which is then float32.
struct LibraryProduct {
  ProductKind kind = ProductKind::kForward;
  const Bf16* a = nullptr;
  int64_t a_stride = 0;
  const Bf16* b = nullptr;
  int64_t b_stride = 0;
  void* c = nullptr;  // float32 or bfloat16
  bool c_is_float = true;
  int64_t c_stride = 0;
  int64_t m = 0, n = 0, k = 0;
  bool add = false;
};

// Opaque, as the library gives it; it stays valid for the life of the process.
struct LibraryAlgorithm {
  std::array<uint64_t, 8> data = {};
};

// Thread: any.
class LibraryProducts {
 public:
  virtual ~LibraryProducts() = default;
  virtual std::string version() const = 0;
  // Algorithms for products of this shape, the fastest first, of which none needs a workspace or
  // cuts k. Only shape, strides and dtypes of `product` are read.
  virtual std::vector<LibraryAlgorithm> choose(const Stream& stream,
                                               const LibraryProduct& product) = 0;
  // Whether the algorithm can make products of this shape.
  virtual bool check(const Stream& stream, const LibraryProduct& product,
                     const LibraryAlgorithm& algorithm) = 0;
  // In the order of the stream. False: refused, and nothing is written.
  [[nodiscard]] virtual bool multiply(const Stream& stream, const LibraryProduct& product,
                                      const LibraryAlgorithm& algorithm) = 0;
};

}  // namespace tailrace::cuda
