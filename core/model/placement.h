// Where the passes of a model run, and in which elements.
#pragma once

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// The CPU computes with float32 whatever its weights are. On a GPU the operands of products (what
// norms and activations give, queries, keys and values, so the KV cache too) are of the weights'
// dtype, which tensor cores read; the residual stream, norms and logits are float32.
struct Placement {
  Device device;
  Dtype operands = Dtype::kF32;

  static Placement on(Device device, Dtype weights) {
    return {device, device.kind == DeviceKind::kCpu ? Dtype::kF32 : weights};
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
