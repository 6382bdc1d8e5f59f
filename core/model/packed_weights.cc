#include "core/model/packed_weights.h"

#include <algorithm>

namespace tailrace {
namespace {

int64_t packed_floats(const ModelConfig& c) {
  constexpr int64_t kAlign = kMemoryAlignment / sizeof(float);
  auto aligned = [](int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; };
  const int64_t q = c.num_heads * c.head_dim, qkv = q + 2 * c.num_kv_heads * c.head_dim;
  const int64_t layer = 2 * aligned(c.hidden_size) +
                        aligned(packed_weight_size(qkv, c.hidden_size)) +
                        aligned(packed_weight_size(c.hidden_size, q)) +
                        aligned(packed_weight_size(2 * c.intermediate_size, c.hidden_size)) +
                        aligned(packed_weight_size(c.hidden_size, c.intermediate_size));
  return c.num_layers * layer + aligned(c.hidden_size) + aligned(c.vocab_size * c.hidden_size) +
         aligned(packed_weight_size(c.vocab_size, c.hidden_size));
}

std::span<const float> copy(Workspace& memory, std::span<const float> values) {
  std::span<float> place = memory.take<float>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), place.begin());
  return place;
}

PackedWeight pack(const Stream& stream, Workspace& memory, ConstMatrix weight) {
  return pack_weight(stream, weight,
                     memory.take<float>(packed_weight_size(weight.rows, weight.cols)));
}

}  // namespace

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters)
    : config_(config),
      buffer_(static_cast<size_t>(packed_floats(config)) * sizeof(float), stream.device),
      layers_(static_cast<size_t>(config.num_layers)) {
  repack(stream, parameters);
}

void PackedWeights::repack(const Stream& stream, const Parameters& parameters) {
  Workspace memory({buffer_.data(), buffer_.size()});  // hands out the same places every time
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const LayerTensors<const float> source = layer_tensors(config_, parameters, i);
    Layer& layer = layers_[static_cast<size_t>(i)];
    layer.input_norm = copy(memory, source.input_norm);
    layer.qkv = pack(stream, memory, source.qkv);
    layer.o = pack(stream, memory, source.o);
    layer.post_norm = copy(memory, source.post_norm);
    layer.gate_up = pack(stream, memory, source.gate_up);
    layer.down = pack(stream, memory, source.down);
  }
  final_norm_ = copy(memory, parameters.vector(kFinalNormName));
  head_ = pack(stream, memory, parameters.matrix(head_name(config_)));
  embeddings_ = {copy(memory, parameters.vector(kEmbeddingName)).data(), config_.vocab_size,
                 config_.hidden_size};
}

}  // namespace tailrace
