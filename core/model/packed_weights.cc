#include "core/model/packed_weights.h"

#include <cmath>
#include <span>
#include <vector>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

size_t packed_bytes(const TensorShape& shape, Dtype dtype, Device device) {
  return shape.cols == 0 ? static_cast<size_t>(shape.rows) * sizeof(float)
                         : static_cast<size_t>(shape.count) *
                               weight_bytes(dtype, shape.rows, shape.cols, device);
}

// Where tensors go, one behind the other, and in which form.
struct Packing {
  const Stream& stream;
  Workspace& memory;
  Dtype dtype;
};

// `offset` is added to a vector.
void pack(const Packing& packing, std::span<const float> values, float offset,
          std::span<const float>& packed) {
  const std::span<float> place = packing.memory.take<float>(std::ssize(values));
  packed = place;
  std::vector<float> sums(values.begin(), values.end());
  for (float& value : sums) value += offset;
  copy(packing.stream,
       {packing.stream.device, reinterpret_cast<std::byte*>(place.data()), place.size_bytes()},
       bytes_of(std::span<const float>(sums)));
  wait(packing.stream);
}

void pack(const Packing& packing, ConstMatrix master, float, Weight& packed) {
  const auto bytes = static_cast<int64_t>(
      weight_bytes(packing.dtype, master.rows, master.cols, packing.stream.device));
  packed =
      pack_weight(packing.stream, master, packing.dtype, packing.memory.take<std::byte>(bytes));
}

// One behind the other, without a gap: a packed weight ends with a whole cache line.
void pack(const Packing& packing, MatrixStack<const float> master, float, WeightStack& packed) {
  const Dtype dtype = packing.dtype;
  packed = {.first = {.dtype = dtype, .out = master.rows, .in = master.cols},
            .count = master.count,
            .bytes = weight_bytes(dtype, master.rows, master.cols, packing.stream.device)};
  for (int64_t i = 0; i < master.count; ++i) {
    Weight weight;
    pack(packing, master.at(i), 0, weight);
    if (i == 0) packed.first = weight;
  }
}

}  // namespace

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters, Dtype dtype)
    : config_(config),
      dtype_(dtype),
      buffer_(static_cast<size_t>(bytes(config, dtype, stream.device)), stream.device),
      layers_(static_cast<size_t>(config.num_layers)) {
  repack(stream, parameters);
}

int64_t PackedWeights::bytes(const ModelConfig& config, Dtype dtype, Device device) {
  size_t bytes = 0;
  const auto count = [&](const TensorShape& shape) {
    bytes += Workspace::aligned(packed_bytes(shape, dtype, device));
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
  const Packing packing{stream, memory, dtype_};
  const auto place = [&](const TensorShape& shape, const auto& from, auto& to) {
    const bool is_norm = shape.kind == ParameterKind::kNorm;
    pack(packing, from, is_norm ? norm_offset : 0.0f, to);
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
