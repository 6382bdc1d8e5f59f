#include "core/model/proved_products.h"

#include "core/model/parameters.h"
#include "kernels/base/backend.h"
#include "kernels/ops/prove_products.h"

namespace tailrace {

void prove_products_of(const ModelConfig& config, Dtype dtype, Device device) {
  if (device.kind == DeviceKind::kCpu) return;
  const OwnedStream stream(device);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto shapes = layer_shapes(config, i);
    // Experts are multiplied together, by a kernel of ours. Shapes repeat: each is proved once.
    for (const TensorShape* shape : {&shapes.qkv, &shapes.o, &shapes.gate_up, &shapes.down})
      if (shape->rows > 0) prove_products(stream.get(), dtype, shape->rows, shape->cols);
  }
  prove_products(stream.get(), dtype, config.num_ids(), config.hidden_size);
}

}  // namespace tailrace
