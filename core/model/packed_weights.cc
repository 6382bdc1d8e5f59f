#include "core/model/packed_weights.h"

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

size_t packed_bytes(const TensorShape& shape, Dtype dtype, Device device) {
  return shape.cols == 0 ? static_cast<size_t>(shape.rows) * sizeof(float)
                         : static_cast<size_t>(shape.count) *
                               weight_bytes(dtype, shape.rows, shape.cols, device);
}

// Gives tensors their places in a buffer, one behind the other.
struct Places {
  Workspace& memory;
  Dtype dtype;

  void take(const TensorShape& shape, std::span<const float>& place) const {
    place = memory.take<float>(shape.rows);
  }
  void take(const TensorShape& shape, Weight& place) const {
    const auto bytes = static_cast<int64_t>(packed_bytes(shape, dtype, memory.device()));
    place = {.dtype = dtype,
             .data = memory.take<std::byte>(bytes).data(),
             .out = shape.rows,
             .in = shape.cols,
             .device = memory.device()};
  }
  // One behind the other, without a gap: a packed weight ends with a whole cache line.
  void take(const TensorShape& shape, WeightStack& place) const {
    place.count = shape.rows > 0 ? shape.count : 0;
    place.bytes = weight_bytes(dtype, shape.rows, shape.cols, memory.device());
    take(shape, place.first);
  }
};

// Fills the places, whose memory is `memory`.
struct Packing {
  const Stream& stream;
  DeviceBytes memory;
  Dtype dtype;

  DeviceBytes at(const void* place, size_t size) const {
    const auto begin = static_cast<const std::byte*>(place) - memory.data;
    return memory.part(static_cast<size_t>(begin), size);
  }
  // `offset` is added to a vector.
  void pack(std::span<const float> values, float offset, std::span<const float> place) const {
    std::vector<float> sums(values.begin(), values.end());
    for (float& value : sums) value += offset;
    copy(stream, at(place.data(), place.size_bytes()), bytes_of(std::span<const float>(sums)));
    wait(stream);
  }
  void pack(ConstMatrix master, float, const Weight& place) const {
    const size_t size = weight_bytes(dtype, master.rows, master.cols, stream.device);
    const DeviceBytes bytes = at(place.data, size);
    pack_weight(stream, master, dtype, {bytes.data, bytes.size});
  }
  void pack(MatrixStack<const float> master, float, const WeightStack& place) const {
    for (int64_t i = 0; i < master.count; ++i) pack(master.at(i), 0, place.at(i));
  }
};

}  // namespace

PackedWeights::PackedWeights(const Stream& stream, const ModelConfig& config,
                             const Parameters& parameters, Dtype dtype)
    : PackedWeights(
          config, dtype,
          Buffer(static_cast<size_t>(bytes(config, dtype, stream.device)), stream.device)) {
  repack(stream, parameters);
}

PackedWeights::PackedWeights(const ModelConfig& config, Dtype dtype, Buffer packed)
    : config_(config),
      dtype_(dtype),
      buffer_(std::move(packed)),
      layers_(static_cast<size_t>(config.num_layers)) {
  Workspace memory(buffer_);
  const Places places{memory, dtype};
  const auto take = [&](const TensorShape& shape, auto& place) { places.take(shape, place); };
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto shapes = layer_shapes(config, i);
    for_each_tensor(take, shapes, layers_[static_cast<size_t>(i)]);
  }
  take({config.hidden_size, 0}, final_norm_);
  take({config.vocab_size, config.hidden_size}, embeddings_);
  if (config.tie_embeddings) {
    head_ = embeddings_;
  } else {
    take({config.vocab_size, config.hidden_size}, head_);
  }
  // The rows come first in the packed form too, so that fewer of them are a weight as well.
  head_.out = config.num_ids();
  TR_CHECK(memory.used() == buffer_.size(), "{} of {} bytes", memory.used(), buffer_.size());
}

int64_t PackedWeights::bytes(const ModelConfig& config, Dtype dtype, Device device) {
  size_t bytes = 0;
  const auto count = [&](const TensorShape& shape) {
    bytes += Workspace::aligned(packed_bytes(shape, dtype, device));
  };
  // The same tensors as the constructor, since the buffer is as large as their sum.
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
  const float norm_offset = config_.offset_norms ? 1.0f : 0.0f;
  const Packing packing{stream, buffer_.bytes(), dtype_};
  const auto pack = [&](const TensorShape& shape, const auto& from, const auto& place) {
    const bool is_norm = shape.kind == ParameterKind::kNorm;
    packing.pack(from, is_norm ? norm_offset : 0.0f, place);
  };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const auto shapes = layer_shapes(config_, i);
    const LayerTensors<const float> source = layer_tensors(config_, parameters, i);
    for_each_tensor(pack, shapes, source, layers_[static_cast<size_t>(i)]);
  }
  pack({.kind = ParameterKind::kNorm}, parameters.vector(kFinalNormName), final_norm_);
  pack({}, parameters.matrix(kEmbeddingName), embeddings_);
  if (!config_.tie_embeddings) pack({}, parameters.matrix(kHeadName), head_);
}

float PackedWeights::embedding_scale() const {
  if (!config_.scaled_embeddings) return 1;
  const float scale = std::sqrt(static_cast<float>(config_.hidden_size));
  return dtype_ == Dtype::kBF16 ? to_float(to_bf16(scale)) : scale;
}

}  // namespace tailrace
