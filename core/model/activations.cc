#include "core/model/activations.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

// Floats a token of each array of a layer, in the order of Activations::Arrays::Layer.
struct RowSizes {
  int64_t hidden, qkv, attended, lse, product, product_inv_rms;

  explicit RowSizes(const ModelConfig& c)
      : hidden(c.hidden_size),
        qkv(c.qkv_size()),
        attended(c.q_size()),
        lse(c.num_heads),
        product(c.post_norms ? c.hidden_size : 0),
        product_inv_rms(c.post_norms ? 1 : 0) {}
};

Matrix rows_of(float* memory, int64_t rows, int64_t cols) { return {memory, rows, cols}; }
Matrix rows_of(std::span<float> memory, int64_t rows, int64_t cols) {
  return rows_of(memory.data(), rows, cols);
}

}  // namespace

MlpSizes::MlpSizes(const ModelConfig& c, int64_t layer) {
  if (!c.is_sparse(layer)) {
    gate_up = 2 * c.intermediate_size;
    return;
  }
  gate_up = c.experts_per_token * 2 * c.expert_size;
  router = c.num_experts;
  choices = c.experts_per_token;
}

MlpSizes MlpSizes::largest(const ModelConfig& config) {
  MlpSizes largest;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const MlpSizes sizes(config, i);
    largest.gate_up = std::max(largest.gate_up, sizes.gate_up);
    largest.router = std::max(largest.router, sizes.router);
    largest.choices = std::max(largest.choices, sizes.choices);
  }
  return largest;
}

MlpMemory::MlpMemory(Workspace& workspace, const MlpSizes& sizes, int64_t max_tokens,
                     const Placement& placement)
    : gate_up(take_tensor(workspace, placement, max_tokens, sizes.gate_up, placement.operands)),
      router(workspace.take<float>(max_tokens * sizes.router)),
      expert_weights(workspace.take<float>(max_tokens * sizes.choices)),
      chosen(workspace.take<int32_t>(max_tokens * sizes.choices)) {}

void MlpMemory::view(const ModelConfig& config, int64_t layer, int64_t tokens,
                     LayerActivations& kept) const {
  const MlpSizes sizes(config, layer);
  if (!config.is_sparse(layer)) {
    kept.gate_up = tensor_at({gate_up.device, gate_up.dtype}, gate_up.data, tokens, sizes.gate_up,
                             gate_up.dtype);
    return;
  }
  kept.gate_up = rows_of(gate_up.host().data, tokens * sizes.choices, 2 * config.expert_size);
  kept.router = rows_of(router, tokens, sizes.router);
  kept.expert_weights = rows_of(expert_weights, tokens, sizes.choices);
  kept.chosen = chosen.first(static_cast<size_t>(tokens * sizes.choices));
}

Activations::Arrays::Arrays(Workspace& memory, const ModelConfig& config, int64_t max_tokens) {
  const RowSizes row(config);
  auto take = [&](int64_t floats) { return memory.take<float>(max_tokens * floats); };
  layers.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    Layer layer;
    layer.input = take(row.hidden);
    layer.input_inv_rms = take(1);
    layer.qkv = take(row.qkv);
    layer.attended = take(row.attended);
    layer.lse = take(row.lse);
    layer.middle = take(row.hidden);
    layer.mlp_inv_rms = take(1);
    layer.o_product = take(row.product);
    layer.o_inv_rms = take(row.product_inv_rms);
    layer.down_product = take(row.product);
    layer.down_inv_rms = take(row.product_inv_rms);
    layer.mlp = MlpMemory(memory, MlpSizes(config, i), max_tokens);
    layers.push_back(layer);
  }
  // Room for every token: a batch may want the logits of all of them.
  final_rows = take(row.hidden);
  final_inv_rms = take(1);
}

int64_t Activations::bytes(const ModelConfig& config, int64_t max_tokens) {
  Workspace memory = Workspace::measuring();
  Arrays(memory, config, max_tokens);
  return static_cast<int64_t>(memory.peak());
}

Activations::Activations(const ModelConfig& config, int64_t max_tokens)
    : config_(config),
      max_tokens_(max_tokens),
      buffer_(static_cast<size_t>(bytes(config, max_tokens))) {
  Workspace memory(buffer_);
  arrays_ = Arrays(memory, config, max_tokens);
}

void Activations::begin(int64_t num_tokens, int64_t num_logit_rows) {
  TR_CHECK(num_tokens <= max_tokens_ && num_logit_rows <= num_tokens,
           "{} tokens, {} logit rows, room for {}", num_tokens, num_logit_rows, max_tokens_);
  num_tokens_ = num_tokens;
  num_logit_rows_ = num_logit_rows;
}

LayerActivations Activations::layer(int64_t index) const {
  const RowSizes row(config_);
  const Arrays::Layer& layer = arrays_.layers[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(num_tokens_);
  LayerActivations kept = {.input = rows_of(layer.input, num_tokens_, row.hidden),
                           .input_inv_rms = layer.input_inv_rms.first(count),
                           .qkv = rows_of(layer.qkv, num_tokens_, row.qkv),
                           .attended = rows_of(layer.attended, num_tokens_, row.attended),
                           .lse = rows_of(layer.lse, num_tokens_, row.lse),
                           .middle = rows_of(layer.middle, num_tokens_, row.hidden),
                           .mlp_inv_rms = layer.mlp_inv_rms.first(count)};
  if (config_.post_norms) {
    kept.o_product = rows_of(layer.o_product, num_tokens_, row.product);
    kept.o_inv_rms = layer.o_inv_rms.first(count);
    kept.down_product = rows_of(layer.down_product, num_tokens_, row.product);
    kept.down_inv_rms = layer.down_inv_rms.first(count);
  }
  layer.mlp.view(config_, index, num_tokens_, kept);
  return kept;
}

Matrix Activations::final_rows() const {
  return rows_of(arrays_.final_rows, num_logit_rows_, config_.hidden_size);
}

std::span<float> Activations::final_inv_rms() const {
  return arrays_.final_inv_rms.first(static_cast<size_t>(num_logit_rows_));
}

}  // namespace tailrace
