// In which elements the weights are that products read, and the KV cache. Master weights, gradients
// and moments are float32 whatever this is, and so are norms, biases and activations.
#pragma once

#include "core/base/enum_names.h"
#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "kernels/base/dtype.h"

namespace tailrace {

enum class Compute : uint8_t { kAuto, kF32, kBf16 };
constexpr auto enum_names(Compute) {
  return name_table<Compute>(
      {{Compute::kAuto, "auto"}, {Compute::kF32, "f32"}, {Compute::kBf16, "bf16"}});
}

// auto: bf16 where the model's files are, else f32. A float16 has more digits than bf16 keeps.
inline Dtype compute_dtype(Compute compute, const ModelConfig& config) {
  const bool bf16 =
      compute == Compute::kBf16 || (compute == Compute::kAuto && config.dtype == Dtype::kBF16);
  return bf16 ? Dtype::kBF16 : Dtype::kF32;
}

inline Elements elements_of(Compute compute, Compute kv_cache, const ModelConfig& config) {
  Elements elements(compute_dtype(compute, config));
  if (kv_cache != Compute::kAuto)
    elements.kv_cache = kv_cache == Compute::kBf16 ? Dtype::kBF16 : Dtype::kF32;
  return elements;
}

}  // namespace tailrace
