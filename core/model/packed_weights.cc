#include "core/model/packed_weights.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

size_t packed_bytes(ConstMatrix master, Dtype dtype) {
  return weight_bytes(dtype, master.rows, master.cols);
}
size_t packed_bytes(const TensorShape& shape, Dtype dtype) {
  return shape.cols == 0
             ? static_cast<size_t>(shape.rows) * sizeof(float)
             : static_cast<size_t>(shape.count) * weight_bytes(dtype, shape.rows, shape.cols);
}

// `offset` is added to a vector.
void pack(const Stream&, Workspace& memory, std::span<const float> values, Dtype, float offset,
          std::span<const float>& packed) {
  const std::span<float> copy = memory.take<float>(std::ssize(values));
  std::ranges::transform(values, copy.begin(), [=](float value) { return value + offset; });
  packed = copy;
}

void pack(const Stream& stream, Workspace& memory, ConstMatrix master, Dtype dtype, float,
          Weight& packed) {
  const auto bytes = static_cast<int64_t>(packed_bytes(master, dtype));
  packed = pack_weight(stream, master, dtype, memory.take<std::byte>(bytes));
}

// One behind the other, without a gap: a packed weight ends with a whole cache line.
void pack(const Stream& stream, Workspace& memory, MatrixStack<const float> master, Dtype dtype,
          float, WeightStack& packed) {
  packed = {.first = {.dtype = dtype, .out = master.rows, .in = master.cols},
            .count = master.count,
            .bytes = weight_bytes(dtype, master.rows, master.cols)};
  for (int64_t i = 0; i < master.count; ++i) {
    const Weight weight = pack_weight(stream, master.at(i), dtype,
                                      memory.take<std::byte>(static_cast<int64_t>(packed.bytes)));
    if (i == 0) packed.first = weight;
  }
}

}  // namespace

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters, Dtype dtype)
    : config_(config),
      dtype_(dtype),
      buffer_(static_cast<size_t>(bytes(config, dtype)), stream.device),
      layers_(static_cast<size_t>(config.num_layers)) {
  repack(stream, parameters);
}

int64_t PackedWeights::bytes(const ModelConfig& config, Dtype dtype) {
  size_t bytes = 0;
  const auto count = [&](const TensorShape& shape) {
    bytes += Workspace::aligned(packed_bytes(shape, dtype));
  };
  // The same tensors as repack(), since the buffer is as large as their sum.
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto layer = layer_shapes(config, i);
    for_each_tensor(count, layer);
  }
  count({config.hidden_size, 0});
  count({config.vocab_size, config.hidden_size});
  if (!config.tie_embeddings) count({config.vocab_size, config.hidden_size});
  return static_cast<int64_t>(bytes);
}

void PackedWeights::repack(const Stream& stream, const Parameters& parameters) {
  Workspace memory(buffer_);  // hands out the same places every time
  const float norm_offset = config_.offset_norms ? 1.0f : 0.0f;
  const auto place = [&](const TensorShape& shape, const auto& from, auto& to) {
    const bool is_norm = shape.kind == ParameterKind::kNorm;
    pack(stream, memory, from, dtype_, is_norm ? norm_offset : 0.0f, to);
  };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const auto shapes = layer_shapes(config_, i);
    const LayerTensors<const float> source = layer_tensors(config_, parameters, i);
    for_each_tensor(place, shapes, source, layers_[static_cast<size_t>(i)]);
  }
  place({.kind = ParameterKind::kNorm}, parameters.vector(kFinalNormName), final_norm_);
  place({}, parameters.matrix(kEmbeddingName), embeddings_);
  if (config_.tie_embeddings) {
    head_ = embeddings_;
  } else {
    place({}, parameters.matrix(kHeadName), head_);
  }
  // The rows come first in the packed form too, so that fewer of them are a weight as well.
  head_.out = config_.num_ids();
  TR_CHECK(memory.used() == buffer_.size(), "{} of {} bytes", memory.used(), buffer_.size());
}

float PackedWeights::embedding_scale() const {
  if (!config_.scaled_embeddings) return 1;
  const float scale = std::sqrt(static_cast<float>(config_.hidden_size));
  return dtype_ == Dtype::kBF16 ? to_float(to_bf16(scale)) : scale;
}

}  // namespace tailrace
