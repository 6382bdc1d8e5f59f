// One decoder layer, forward and backward side by side:
//
//   middle = input  + Attention(RMSNorm(input)) Wo^T       q and k normalised by head with qk_norm
//   output = middle + MLP(x),   x = RMSNorm(middle)        what is added normalised with post_norms
//   MLP(x) = (activation(x Wgate^T) * (x Wup^T)) Wdown^T, or in a sparse layer
//   MLP(x) = sum over e of w_e MLP_e(x),   w and the experts e as kernels/ops/router.h says, or the
//                                          experts that the batch gives
//
// Beside each product x W^T may stand that of an adapter, (alpha / rank) (x A^T) B^T (lora.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/model/layer_pass.h"
#include "core/model/model_config.h"
#include "core/model/parameters.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// The balance that a sparse layer of a backward pass adds (expert_loads.h).
struct LayerBalance {
  float scale = 0;  // of the sum over sequences of tokens * balance loss; 0: no gradient
  std::span<int64_t> choices = {};
  std::span<double> losses = {};  // both empty: nobody asks
};

// Adds `residual` to kept.input, fills the rest of `kept`, writes K and V into `kv`, and into
// `output` [tokens, hidden] what kept.middle has to be added to: the next layer does that with its
// norm. output may be kept.input when nobody needs that any more.
void forward_layer(const LayerPass& pass, Tensor output);

// Gradients of one layer, where the pass runs: of an adapter's matrices alone where there is one,
// of all others else.
struct LayerGradients : LayerTensors<float> {
  AdapterOf<Matrix> adapter = {};
};

// `dx` [tokens, hidden] is the gradient to the layer's output and becomes the gradient to its
// input; adds to `gradients`. Every sequence of the batch is whole, `kv` and `kept` are those of
// forward_layer().
void backward_layer(const LayerPass& pass, const LayerBalance& balance,
                    const LayerGradients& gradients, Tensor dx);

// How large passes get, and where they run. Threads are those of a stream of the CPU.
struct PassRoom {
  int64_t tokens = 0;
  int context = 0, num_threads = 1;
  Placement placement = {};
};
size_t forward_layer_workspace_bytes(const ModelConfig& config, const PassRoom& room);
size_t backward_layer_workspace_bytes(const ModelConfig& config, const PassRoom& room);

}  // namespace tailrace
