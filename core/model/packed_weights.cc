#include "core/model/packed_weights.h"

#include <algorithm>

namespace tailrace {
namespace {

int64_t packed_size(std::span<const float> values) { return std::ssize(values); }
int64_t packed_size(ConstMatrix weight) { return packed_weight_size(weight.rows, weight.cols); }

void pack(const Stream&, Workspace& memory, std::span<const float> values,
          std::span<const float>& packed) {
  const std::span<float> copy = memory.take<float>(packed_size(values));
  std::ranges::copy(values, copy.begin());
  packed = copy;
}

void pack(const Stream& stream, Workspace& memory, ConstMatrix weight, PackedWeight& packed) {
  packed = pack_weight(stream, weight, memory.take<float>(packed_size(weight)));
}

size_t packed_bytes(const ModelConfig& config, const Parameters& parameters) {
  size_t bytes = 0;
  auto count = [&](const auto& tensor) {
    bytes += Workspace::aligned(static_cast<size_t>(packed_size(tensor)) * sizeof(float));
  };
  // The same tensors as repack(), since the buffer is as large as their sum.
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const LayerTensors<const float> layer = layer_tensors(config, parameters, i);
    for_each_tensor(count, layer);
  }
  count(parameters.vector(kFinalNormName));
  count(parameters.matrix(head_name(config)));
  count(parameters.vector(kEmbeddingName));
  return bytes;
}

}  // namespace

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters)
    : config_(config),
      buffer_(packed_bytes(config, parameters), stream.device),
      layers_(static_cast<size_t>(config.num_layers)) {
  repack(stream, parameters);
}

void PackedWeights::repack(const Stream& stream, const Parameters& parameters) {
  Workspace memory({buffer_.data(), buffer_.size()});  // hands out the same places every time
  auto place = [&](const auto& from, auto& to) { pack(stream, memory, from, to); };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const LayerTensors<const float> source = layer_tensors(config_, parameters, i);
    for_each_tensor(place, source, layers_[static_cast<size_t>(i)]);
  }
  place(parameters.vector(kFinalNormName), final_norm_);
  // A tied head is stored twice: products read panels, the embedding reads rows.
  place(parameters.matrix(head_name(config_)), head_);
  std::span<const float> embeddings;
  place(parameters.vector(kEmbeddingName), embeddings);
  embeddings_ = {embeddings.data(), config_.vocab_size, config_.hidden_size};
}

}  // namespace tailrace
