// Where the passes of a model run, and in which elements.
#pragma once

#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// In which elements a policy computes, wherever that is.
struct Elements {
  Dtype weights = Dtype::kF32;  // those that products read
  // Of the KV cache; none: float32 on the CPU, that of the weights on a GPU, which has no other.
  std::optional<Dtype> kv_cache = {};

  Elements() = default;
  Elements(Dtype of_weights, std::optional<Dtype> of_cache = {})  // NOLINT
      : weights(of_weights), kv_cache(of_cache) {}
};

// The CPU computes with float32 whatever its weights are; its KV cache is of float32 or bfloat16.
// On a GPU the operands of products (what norms and activations give, queries, keys and values, so
// the KV cache too) are of the weights' dtype, which tensor cores read; the residual stream, norms
// and logits are float32.
struct Placement {
  Device device;
  Dtype operands = Dtype::kF32;
  Dtype kv_cache = Dtype::kF32;

  static Placement on(Device device, const Elements& elements) {
    if (device.kind == DeviceKind::kCpu)
      return {device, Dtype::kF32, elements.kv_cache.value_or(Dtype::kF32)};
    TR_CHECK(elements.kv_cache.value_or(elements.weights) == elements.weights);
    return {device, elements.weights, elements.weights};
  }
};

// Elements from one row to the next.
inline int64_t row_stride(const Placement& placement, int64_t cols, Dtype dtype) {
  if (placement.device.kind == DeviceKind::kCpu) return cols;
  const int64_t step = 16 / size_of(dtype);  // rows begin at multiples of 16 bytes there
  return (cols + step - 1) / step * step;
}

inline Tensor tensor_at(const Placement& placement, std::byte* memory, int64_t rows, int64_t cols,
                        Dtype dtype) {
  Tensor tensor(memory, rows, cols, dtype, placement.device);
  tensor.stride = row_stride(placement, cols, dtype);
  return tensor;
}

inline Tensor take_tensor(Workspace& workspace, const Placement& placement, int64_t rows,
                          int64_t cols, Dtype dtype) {
  const int64_t bytes = rows * row_stride(placement, cols, dtype) * size_of(dtype);
  return tensor_at(placement, workspace.take<std::byte>(bytes).data(), rows, cols, dtype);
}

}  // namespace tailrace
