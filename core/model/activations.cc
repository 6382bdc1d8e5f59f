#include "core/model/activations.h"

#include "kernels/base/check.h"

namespace tailrace {
namespace {

// Floats a token of each array of a layer, in the order of Activations::Layer.
struct RowSizes {
  int64_t hidden, qkv, attended, lse, gate_up;

  explicit RowSizes(const ModelConfig& c)
      : hidden(c.hidden_size),
        qkv(c.qkv_size()),
        attended(c.q_size()),
        lse(c.num_heads),
        gate_up(2 * c.intermediate_size) {}
};

Matrix rows_of(std::span<float> memory, int64_t rows, int64_t cols) {
  return {memory.data(), rows, cols};
}

}  // namespace

int64_t Activations::bytes(const ModelConfig& config, int64_t max_tokens) {
  const RowSizes row(config);
  // Rounded up one by one, as take() does.
  auto bytes_of = [&](int64_t floats) {
    return static_cast<int64_t>(
        Workspace::aligned(static_cast<size_t>(max_tokens * floats) * sizeof(float)));
  };
  const int64_t layer = 2 * bytes_of(row.hidden) + 2 * bytes_of(1) + bytes_of(row.qkv) +
                        bytes_of(row.attended) + bytes_of(row.lse) + bytes_of(row.gate_up);
  return config.num_layers * layer + bytes_of(row.hidden) + bytes_of(1);
}

Activations::Activations(const ModelConfig& config, int64_t max_tokens)
    : config_(config),
      max_tokens_(max_tokens),
      buffer_(static_cast<size_t>(bytes(config, max_tokens))) {
  const RowSizes row(config);
  // As many takes, of the same sizes, as bytes() counts.
  Workspace memory({buffer_.data(), buffer_.size()});
  auto take = [&](int64_t floats) { return memory.take<float>(max_tokens * floats); };
  layers_.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    Layer layer;
    layer.input = take(row.hidden);
    layer.input_inv_rms = take(1);
    layer.qkv = take(row.qkv);
    layer.attended = take(row.attended);
    layer.lse = take(row.lse);
    layer.middle = take(row.hidden);
    layer.post_inv_rms = take(1);
    layer.gate_up = take(row.gate_up);
    layers_.push_back(layer);
  }
  // Room for every token: a batch may want the logits of all of them.
  final_rows_ = take(row.hidden);
  final_inv_rms_ = take(1);
}

void Activations::begin(int64_t num_tokens, int64_t num_logit_rows) {
  TR_CHECK(num_tokens <= max_tokens_ && num_logit_rows <= num_tokens,
           "{} tokens, {} logit rows, room for {}", num_tokens, num_logit_rows, max_tokens_);
  num_tokens_ = num_tokens;
  num_logit_rows_ = num_logit_rows;
}

LayerActivations Activations::layer(int64_t index) const {
  const RowSizes row(config_);
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(num_tokens_);
  return {.input = rows_of(layer.input, num_tokens_, row.hidden),
          .input_inv_rms = layer.input_inv_rms.first(count),
          .qkv = rows_of(layer.qkv, num_tokens_, row.qkv),
          .attended = rows_of(layer.attended, num_tokens_, row.attended),
          .lse = rows_of(layer.lse, num_tokens_, row.lse),
          .middle = rows_of(layer.middle, num_tokens_, row.hidden),
          .post_inv_rms = layer.post_inv_rms.first(count),
          .gate_up = rows_of(layer.gate_up, num_tokens_, row.gate_up)};
}

Matrix Activations::final_rows() const {
  return rows_of(final_rows_, num_logit_rows_, config_.hidden_size);
}

std::span<float> Activations::final_inv_rms() const {
  return final_inv_rms_.first(static_cast<size_t>(num_logit_rows_));
}

}  // namespace tailrace
