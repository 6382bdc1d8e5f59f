#include "core/model/activations.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

int64_t bytes_of_rows(const Placement& placement, int64_t rows, int64_t cols, Dtype dtype) {
  return rows * row_stride(placement, cols, dtype) * size_of(dtype);
}

}  // namespace

MlpSizes::MlpSizes(const ModelConfig& c, int64_t layer) {
  if (!c.is_sparse(layer)) {
    gate_up_rows = 1;
    gate_up = 2 * c.intermediate_size;
    return;
  }
  gate_up_rows = c.experts_per_token;
  gate_up = 2 * c.expert_size;
  router = c.num_experts;
  choices = c.experts_per_token;
}

MlpMemory::MlpMemory(Workspace& workspace, const ModelConfig& config, int64_t layer,
                     int64_t max_tokens, const Placement& placement) {
  const MlpSizes sizes(config, layer);
  const auto take = [&](int64_t rows, int64_t cols, Dtype dtype) {
    return workspace.take<std::byte>(bytes_of_rows(placement, rows, cols, dtype));
  };
  gate_up = take(max_tokens * sizes.gate_up_rows, sizes.gate_up, placement.operands);
  router = take(max_tokens, sizes.router, Dtype::kF32);
  expert_weights = take(max_tokens, sizes.choices, Dtype::kF32);
  chosen = workspace.take<int32_t>(max_tokens * sizes.choices);
}

// One piece of memory for all layers, for passes in which a layer's activations are gone before the
// next one begins. Dense and sparse layers differ in every size, so each array has its own maximum.
MlpMemory MlpMemory::of_all(Workspace& workspace, const ModelConfig& config, int64_t max_tokens,
                            const Placement& placement) {
  int64_t gate_up = 0, router = 0, weights = 0, chosen = 0;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const MlpSizes sizes(config, i);
    gate_up = std::max(gate_up, bytes_of_rows(placement, max_tokens * sizes.gate_up_rows,
                                              sizes.gate_up, placement.operands));
    router = std::max(router, bytes_of_rows(placement, max_tokens, sizes.router, Dtype::kF32));
    weights = std::max(weights, bytes_of_rows(placement, max_tokens, sizes.choices, Dtype::kF32));
    chosen = std::max(chosen, max_tokens * sizes.choices);
  }
  MlpMemory memory;
  memory.gate_up = workspace.take<std::byte>(gate_up);
  memory.router = workspace.take<std::byte>(router);
  memory.expert_weights = workspace.take<std::byte>(weights);
  memory.chosen = workspace.take<int32_t>(chosen);
  return memory;
}

void MlpMemory::view(const ModelConfig& config, int64_t layer, int64_t tokens,
                     const Placement& placement, LayerActivations& kept) const {
  const MlpSizes sizes(config, layer);
  kept.gate_up = tensor_at(placement, gate_up.data(), tokens * sizes.gate_up_rows, sizes.gate_up,
                           placement.operands);
  if (!config.is_sparse(layer)) return;
  kept.router = tensor_at(placement, router.data(), tokens, sizes.router, Dtype::kF32);
  kept.expert_weights =
      tensor_at(placement, expert_weights.data(), tokens, sizes.choices, Dtype::kF32);
  kept.chosen = chosen.first(static_cast<size_t>(tokens * sizes.choices));
}

Activations::Arrays::Arrays(Workspace& memory, const ModelConfig& config, int64_t max_tokens,
                            const Placement& placement, bool recomputes) {
  const auto stream = [&](int64_t cols) {  // float32, as the residual stream
    return take_tensor(memory, placement, max_tokens, cols, Dtype::kF32);
  };
  const auto operand = [&](int64_t cols) {
    return take_tensor(memory, placement, max_tokens, cols, placement.operands);
  };
  const auto row_values = [&](int64_t rows) { return memory.take<float>(rows); };
  const int64_t hidden = config.hidden_size, normed = config.post_norms ? max_tokens : 0;
  layers.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    // Recomputation keeps the input of each layer and nothing else: the other arrays are the first
    // layer's, which backward fills again from that input before it goes through the layer.
    if (recomputes && i > 0) {
      layers.push_back(layers.front());
      layers.back().kept.input = stream(hidden);
      continue;
    }
    Layer layer;
    LayerActivations& kept = layer.kept;
    kept.input = stream(hidden);
    kept.input_inv_rms = row_values(max_tokens);
    kept.qkv = operand(config.qkv_size());
    kept.attended = operand(config.q_size());
    kept.lse = stream(config.num_heads);
    kept.middle = stream(hidden);
    kept.mlp_inv_rms = row_values(max_tokens);
    if (config.post_norms) {
      kept.o_product = stream(hidden);
      kept.o_inv_rms = row_values(normed);
      kept.down_product = stream(hidden);
      kept.down_inv_rms = row_values(normed);
    }
    layer.mlp = recomputes ? MlpMemory::of_all(memory, config, max_tokens, placement)
                           : MlpMemory(memory, config, i, max_tokens, placement);
    layers.push_back(layer);
  }
  // Room for every token: a batch may want the logits of all of them.
  final_rows = stream(hidden);
  final_inv_rms = row_values(max_tokens);
  if (keeps_logits(config, max_tokens, placement, recomputes)) logits = stream(config.num_ids());
}

bool keeps_logits(const ModelConfig& config, int64_t max_tokens, const Placement& placement,
                  bool recomputes) {
  return placement.device.kind == DeviceKind::kCpu && !recomputes &&
         bytes_of_rows(placement, max_tokens, config.num_ids(), Dtype::kF32) <= kMaxKeptLogitBytes;
}

int64_t Activations::bytes(const ModelConfig& config, int64_t max_tokens,
                           const Placement& placement, bool recomputes) {
  Workspace memory = Workspace::measuring();
  Arrays(memory, config, max_tokens, placement, recomputes);
  return static_cast<int64_t>(memory.peak());
}

Activations::Activations(const ModelConfig& config, int64_t max_tokens, const Placement& placement,
                         bool recomputes)
    : config_(config),
      placement_(placement),
      recomputes_(recomputes),
      max_tokens_(max_tokens),
      buffer_(static_cast<size_t>(bytes(config, max_tokens, placement, recomputes)),
              placement.device) {
  Workspace memory(buffer_);
  arrays_ = Arrays(memory, config, max_tokens, placement, recomputes);
}

void Activations::begin(int64_t num_tokens, int64_t num_logit_rows) {
  TR_CHECK(num_tokens <= max_tokens_ && num_logit_rows <= num_tokens,
           "{} tokens, {} logit rows, room for {}", num_tokens, num_logit_rows, max_tokens_);
  num_tokens_ = num_tokens;
  num_logit_rows_ = num_logit_rows;
}

LayerActivations Activations::layer(int64_t index) const {
  const Arrays::Layer& layer = arrays_.layers[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(num_tokens_);
  LayerActivations kept = layer.kept;
  // The memory has room for max_tokens; the views are cut to the rows of this batch.
  for (Tensor* tensor : {&kept.input, &kept.qkv, &kept.attended, &kept.lse, &kept.middle})
    tensor->rows = num_tokens_;
  kept.input_inv_rms = kept.input_inv_rms.first(count);
  kept.mlp_inv_rms = kept.mlp_inv_rms.first(count);
  if (config_.post_norms) {
    kept.o_product.rows = kept.down_product.rows = num_tokens_;
    kept.o_inv_rms = kept.o_inv_rms.first(count);
    kept.down_inv_rms = kept.down_inv_rms.first(count);
  }
  layer.mlp.view(config_, index, num_tokens_, placement_, kept);
  return kept;
}

Tensor Activations::final_rows() const { return arrays_.final_rows.slice_rows(0, num_logit_rows_); }

std::span<float> Activations::final_inv_rms() const {
  return arrays_.final_inv_rms.first(static_cast<size_t>(num_logit_rows_));
}

Tensor Activations::logits() const {
  return arrays_.logits.rows == 0 ? Tensor() : arrays_.logits.slice_rows(0, num_logit_rows_);
}

}  // namespace tailrace
