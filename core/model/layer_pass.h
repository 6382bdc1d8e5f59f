// The arguments that one pass gives to one decoder layer (decoder_layer.h).
#pragma once

#include <cstdint>

#include "core/model/activations.h"
#include "core/model/forward_batch.h"
#include "core/model/model_config.h"
#include "core/model/packed_weights.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// One layer in one pass: where it runs, what it reads, and what it keeps. Borrows everything.
struct LayerPass {
  const Stream& stream;
  Workspace& workspace;
  const ModelConfig& config;
  const Placement& placement;
  const ForwardBatch& batch;
  ConstTensor rope_table;  // [positions, head_dim] the angles of this layer
  int64_t layer = 0;
  const PackedWeights::Layer& weights;
  KvLayer kv;
  LayerActivations kept;
  // The kept.middle of the layer before, which forward_layer() has to add to its input. No rows:
  // nothing, as in the first layer.
  ConstTensor residual = {};
};

}  // namespace tailrace
