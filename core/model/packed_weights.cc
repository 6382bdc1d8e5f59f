#include "core/model/packed_weights.h"

#include <algorithm>

namespace tailrace {
namespace {

size_t packed_bytes(std::span<const float> values, Dtype) { return values.size_bytes(); }
size_t packed_bytes(ConstMatrix master, Dtype dtype) {
  return weight_bytes(dtype, master.rows, master.cols);
}

void pack(const Stream&, Workspace& memory, std::span<const float> values, Dtype,
          std::span<const float>& packed) {
  const std::span<float> copy = memory.take<float>(std::ssize(values));
  std::ranges::copy(values, copy.begin());
  packed = copy;
}

void pack(const Stream& stream, Workspace& memory, ConstMatrix master, Dtype dtype,
          Weight& packed) {
  const auto bytes = static_cast<int64_t>(packed_bytes(master, dtype));
  packed = pack_weight(stream, master, dtype, memory.take<std::byte>(bytes));
}

}  // namespace

size_t PackedWeights::bytes(const ModelConfig& config, Dtype dtype) {
  size_t bytes = 0;
  const auto count = [&](const auto& tensor) {
    bytes += Workspace::aligned(packed_bytes(tensor, dtype));
  };
  // The same tensors as repack(), since the buffer is as large as their sum.
  const LayerTensors<const float> layer = layer_shapes(config);
  for_each_tensor(count, layer);
  bytes *= static_cast<size_t>(config.num_layers);
  count(std::span(static_cast<const float*>(nullptr), static_cast<size_t>(config.hidden_size)));
  const ConstMatrix rows(nullptr, config.vocab_size, config.hidden_size);
  count(rows);
  if (!config.tie_embeddings) count(rows);
  return bytes;
}

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters, Dtype dtype)
    : config_(config),
      dtype_(dtype),
      buffer_(bytes(config, dtype), stream.device),
      layers_(static_cast<size_t>(config.num_layers)) {
  repack(stream, parameters);
}

void PackedWeights::repack(const Stream& stream, const Parameters& parameters) {
  Workspace memory({buffer_.data(), buffer_.size()});  // hands out the same places every time
  const auto place = [&](const auto& from, auto& to) { pack(stream, memory, from, dtype_, to); };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const LayerTensors<const float> source = layer_tensors(config_, parameters, i);
    for_each_tensor(place, source, layers_[static_cast<size_t>(i)]);
  }
  place(parameters.vector(kFinalNormName), final_norm_);
  place(parameters.matrix(kEmbeddingName), embeddings_);
  if (config_.tie_embeddings) {
    head_ = embeddings_;
  } else {
    place(parameters.matrix(kHeadName), head_);
  }
}

}  // namespace tailrace
