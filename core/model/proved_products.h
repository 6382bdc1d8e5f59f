// The products of a model, proved on a device before a process says its numerics class.
#pragma once

#include "core/model/model_config.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

// prove_products() (kernels/ops/prove_products.h) for the matrices of all layers and the head,
// whose elements are `dtype`. Takes memory of the device meanwhile. Nothing on the CPU.
void prove_products_of(const ModelConfig& config, Dtype dtype, Device device);

}  // namespace tailrace
