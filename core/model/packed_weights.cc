#include "core/model/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model/reward_head.h"
#include "kernels/base/check.h"
#include "kernels/ops/embedding.h"

namespace tailrace {
namespace {

// They are few, and what an update changes in them would often be lost in a bfloat16.
constexpr Dtype kAdapterDtype = Dtype::kF32;

size_t packed_bytes(const TensorShape& shape, Dtype dtype, Device device) {
  return shape.cols == 0 ? static_cast<size_t>(shape.rows) * sizeof(float)
                         : static_cast<size_t>(shape.count) *
                               weight_bytes(dtype, shape.rows, shape.cols, device);
}

// Weights that a pass reads from memory, whatever caches a machine has.
constexpr int64_t kLargestCache = int64_t{128} << 20;

// Gives tensors their places in a buffer, one behind the other.
struct Places {
  Workspace& memory;
  Dtype dtype;
  bool from_memory = false;

  void take(const TensorShape& shape, std::span<const float>& place) const {
    place = memory.take<float>(shape.rows);
  }
  void take(const TensorShape& shape, Weight& place) const {
    const auto bytes = static_cast<int64_t>(packed_bytes(shape, dtype, memory.device()));
    place = {.dtype = dtype,
             .data = memory.take<std::byte>(bytes).data(),
             .out = shape.rows,
             .in = shape.cols,
             .device = memory.device(),
             .from_memory = from_memory};
  }
  // One behind the other, without a gap: a packed weight ends with a whole cache line.
  void take(const TensorShape& shape, WeightStack& place) const {
    place.count = shape.rows > 0 ? shape.count : 0;
    place.bytes = weight_bytes(dtype, shape.rows, shape.cols, memory.device());
    take(shape, place.first);
  }
};

// Rows of a matrix that may lie in several places, in their order.
struct RowPiece {
  TensorValues values;
  int64_t rows = 0, cols = 0;
  RowPiece slice(int64_t begin, int64_t end) const {
    return {values.part(begin * cols, (end - begin) * cols), end - begin, cols};
  }
};
using RowPieces = std::vector<RowPiece>;

// Pieces that follow each other in memory are one.
RowPieces rows_of(const WeightSource& source, const TensorParts& parts, int64_t cols) {
  RowPieces pieces;
  for (const TensorPart& part : parts) {
    const TensorValues values = source(part.name);
    TR_CHECK(values.size() == part.rows * cols, "'{}' has {} values", part.name, values.size());
    // Parameters lay a group's tensors side by side, so q, k and v are packed as one matrix without
    // a copy; files may have them in several places.
    if (!pieces.empty() && pieces.back().values.extend_by(values)) {
      pieces.back().rows += part.rows;
    } else {
      pieces.push_back({values, part.rows, cols});
    }
  }
  return pieces;
}

RowPieces slice_rows(const RowPieces& pieces, int64_t begin, int64_t end) {
  RowPieces slice;
  int64_t first = 0;
  for (const RowPiece& piece : pieces) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + piece.rows);
    if (from < to) slice.push_back(piece.slice(from - first, to - first));
    first += piece.rows;
  }
  return slice;
}

// Fills the places, whose memory is `memory`.
struct Packing {
  const Stream& stream;
  const WeightSource& source;
  DeviceBytes memory;
  Dtype dtype;

  DeviceBytes at(const void* place, size_t size) const {
    const auto begin = static_cast<const std::byte*>(place) - memory.data;
    return memory.part(static_cast<size_t>(begin), size);
  }
  void pack(const TensorParts& parts, const TensorShape& /*shape*/, float offset,
            std::span<const float> place) const {
    if (stream.device.kind != DeviceKind::kCpu &&
        source(parts.front().name).device() == stream.device)
      return pack_on_device(parts, offset, place);
    std::vector<float> values;
    for (const TensorPart& part : parts) {
      const TensorValues some = source(part.name);
      const size_t before = values.size();
      values.resize(before + static_cast<size_t>(some.size()));
      some.to_floats(std::span(values).subspan(before));
    }
    // Not 0: that would turn -0 into 0, and what is packed are the bits of the version.
    if (offset != 0) {
      for (float& value : values) value += offset;
    }
    copy(stream, at(place.data(), place.size_bytes()), bytes_of(std::span<const float>(values)));
    wait(stream);
  }
  // Packs values that lie on the device already, in one piece.
  void pack_on_device(const TensorParts& parts, float offset, std::span<const float> place) const {
    const RowPieces pieces = rows_of(source, parts, /*cols=*/1);
    TR_CHECK(pieces.size() == 1, "'{}' lies in pieces", parts.front().name);
    const DeviceBytes to = at(place.data(), place.size_bytes());
    shift(stream, {.x = pieces.front().values.floats(),
                   .offset = offset,
                   .y = {reinterpret_cast<float*>(to.data), place.size()}});
  }
  void pack(const TensorParts& parts, const TensorShape& shape, float, const Weight& place) const {
    pack(rows_of(source, parts, shape.cols), place);
  }
  void pack(const TensorParts& parts, const TensorShape& shape, float,
            const WeightStack& place) const {
    const RowPieces pieces = rows_of(source, parts, shape.cols);
    for (int64_t i = 0; i < place.count; ++i)
      pack(slice_rows(pieces, i * shape.rows, (i + 1) * shape.rows), place.at(i));
  }
  void pack(const RowPieces& pieces, const Weight& place) const {
    if (pieces.size() == 1 && pieces.front().values.dtype() == Dtype::kF32) {
      const RowPiece& whole = pieces.front();
      ConstTensor rows = ConstMatrix(whole.values.floats().data(), whole.rows, whole.cols);
      rows.device = whole.values.device();
      return pack(rows, place, /*first=*/0);
    }
    // A few rows at a time are brought together, as floats.
    constexpr int64_t kFloats = 1 << 16;
    // A multiple of kWeightRows, since the packed form interleaves that many rows and pack() begins
    // at a whole tile.
    const int64_t step = std::max<int64_t>(1, kFloats / (place.in * kWeightRows)) * kWeightRows;
    std::vector<float> together(static_cast<size_t>(std::min(step, place.out) * place.in));
    for (int64_t begin = 0; begin < place.out; begin += step) {
      const int64_t end = std::min(place.out, begin + step);
      std::span<float> rest(together);
      for (const RowPiece& piece : slice_rows(pieces, begin, end)) {
        const auto size = static_cast<size_t>(piece.values.size());
        piece.values.to_floats(rest.first(size));
        rest = rest.subspan(size);
      }
      pack(ConstMatrix(together.data(), end - begin, place.in), place, begin);
    }
  }
  // The rows of the place from `first`, a multiple of kWeightRows.
  void pack(ConstTensor rows, const Weight& place, int64_t first) const {
    const DeviceBytes bytes = at(place.data + weight_bytes(dtype, first, place.in, stream.device),
                                 weight_bytes(dtype, rows.rows, rows.cols, stream.device));
    pack_weight(stream, rows, dtype, {bytes.data, bytes.size});
  }
};

// Where the parts of one place lie.
struct Listing {
  std::vector<PackedTensor>& tensors;
  Dtype dtype;

  void add(const TensorParts& parts, int64_t cols, PackedTensor tensor) const {
    for (const TensorPart& part : parts) {
      tensor.name = part.name;
      tensor.rows = part.rows;
      tensor.cols = cols;
      tensors.push_back(tensor);
      tensor.first_row += part.rows;
    }
  }
  void add(const TensorParts& parts, int64_t, float offset, std::span<const float> place) const {
    add(parts, 0, {.vector = place, .offset = offset});
  }
  void add(const TensorParts& parts, int64_t cols, float, const WeightStack& place) const {
    add(parts, cols, {.matrices = place, .dtype = dtype});
  }
  void add(const TensorParts& parts, int64_t cols, float, const Weight& place) const {
    add(parts, cols, {.matrices = {.first = place, .count = 1}, .dtype = dtype});
  }
};

}  // namespace

TensorValues TensorValues::part(int64_t first, int64_t count) const {
  TR_CHECK(first >= 0 && count >= 0 && first + count <= size(), "values [{}, {}) of {}", first,
           first + count, size());
  TensorValues values(*this);
  const int64_t width = size_of(dtype_);
  values.bytes_ =
      bytes_.subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width));
  return values;
}

bool TensorValues::extend_by(const TensorValues& next) {
  if (next.dtype_ != dtype_ || next.device_ != device_ ||
      bytes_.data() + bytes_.size() != next.bytes_.data())
    return false;
  bytes_ = {bytes_.data(), bytes_.size() + next.bytes_.size()};
  return true;
}

std::span<const float> TensorValues::floats() const {
  TR_CHECK(dtype_ == Dtype::kF32, "values of {} bytes each", size_of(dtype_));
  return {reinterpret_cast<const float*>(bytes_.data()), static_cast<size_t>(size())};
}

void TensorValues::to_floats(std::span<float> out) const {
  TR_CHECK(std::ssize(out) == size() && device_ == Device{}, "{} floats for {} values of device {}",
           out.size(), size(), device_.index);
  if (dtype_ == Dtype::kF32) {
    std::ranges::copy(floats(), out.begin());
    return;
  }
  const std::span values(reinterpret_cast<const Bf16*>(bytes_.data()), out.size());
  // Runs of a fixed length: so the compiler makes vectors of them.
  constexpr size_t kRun = 64;
  size_t i = 0;
  for (; i + kRun <= values.size(); i += kRun) {
    const Bf16* from = values.data() + i;
    float* to = out.data() + i;
    for (size_t j = 0; j < kRun; ++j) to[j] = to_float(from[j]);
  }
  for (; i < values.size(); ++i) out[i] = to_float(values[i]);
}

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
  const Places places{memory, dtype, static_cast<int64_t>(buffer_.size()) > kLargestCache};
  const auto take = [&](const TensorShape& shape, auto& place) { places.take(shape, place); };
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto shapes = layer_shapes(config, i);
    for_each_tensor(take, shapes, layers_[static_cast<size_t>(i)]);
  }
  const auto check = [&] {
    TR_CHECK(memory.used() == buffer_.size(), "{} of {} bytes", memory.used(), buffer_.size());
  };
  take({config.hidden_size, 0}, final_norm_);
  take({config.vocab_size, config.hidden_size}, embeddings_);
  if (is_reward_model(config)) {
    take({config.hidden_size, 0}, score_);
    check();
    return;
  }
  if (config.tie_embeddings) {
    // Tied embeddings are packed once: both products read the same memory.
    head_ = embeddings_;
  } else {
    take({config.vocab_size, config.hidden_size}, head_);
  }
  // The rows come first in the packed form too, so that fewer of them are a weight as well.
  head_.out = config.num_ids();
  check();
}

PackedWeights::PackedWeights(std::shared_ptr<const PackedWeights> base, const ModelConfig& config,
                             Buffer packed)
    : config_(config),
      dtype_(base->dtype()),
      base_(std::move(base)),
      buffer_(std::move(packed)),
      layers_(base_->layers_),
      final_norm_(base_->final_norm_),
      score_(base_->score_),
      embeddings_(base_->embeddings_),
      head_(base_->head_) {
  Workspace memory(buffer_);
  const Places places{memory, kAdapterDtype};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto shapes = adapter_shapes(config);
    for_each_adapter(
        [&](const TensorShape& shape, Weight& place) {
          if (shape.rows > 0) places.take(shape, place);
        },
        shapes, layers_[static_cast<size_t>(i)].adapter);
  }
  TR_CHECK(memory.used() == buffer_.size(), "{} of {} bytes", memory.used(), buffer_.size());
}

PackedWeights::PackedWeights(const Stream& stream, std::shared_ptr<const PackedWeights> base,
                             const ModelConfig& config, const Parameters& adapter)
    : PackedWeights(
          std::move(base), config,
          Buffer(static_cast<size_t>(adapter_bytes(config, stream.device)), stream.device)) {
  repack(stream, adapter);
}

int64_t PackedWeights::adapter_bytes(const ModelConfig& config, Device device) {
  size_t bytes = 0;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto shapes = adapter_shapes(config);
    for_each_adapter(
        [&](const TensorShape& shape) {
          if (shape.rows > 0)
            bytes += Workspace::aligned(packed_bytes(shape, kAdapterDtype, device));
        },
        shapes);
  }
  return static_cast<int64_t>(bytes);
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
  if (is_reward_model(config))
    count({config.hidden_size, 0});
  else if (!config.tie_embeddings)
    count({config.vocab_size, config.hidden_size});
  return static_cast<int64_t>(bytes);
}

float PackedWeights::offset_of(ParameterKind kind) const {
  return config_.offset_norms && kind == ParameterKind::kNorm ? 1.0f : 0.0f;
}

Weight PackedWeights::whole_head() const {
  Weight head = head_;
  head.out = config_.vocab_size;
  return head;
}

void PackedWeights::repack(const Stream& stream, const Parameters& parameters) {
  repack(stream, [&](std::string_view name) {
    return TensorValues(parameters.values(name), parameters.device());
  });
}

void PackedWeights::repack(const Stream& stream, const WeightSource& source) {
  const Packing packing{stream, source, buffer_.bytes(), base_ ? kAdapterDtype : dtype_};
  if (base_) {
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const auto parts = adapter_parts(config_, i);
      const auto shapes = adapter_shapes(config_);
      for_each_adapter(
          [&](const TensorParts& names, const TensorShape& shape, const Weight& place) {
            if (!names.empty()) packing.pack(names, shape, 0, place);
          },
          parts, shapes, layers_[static_cast<size_t>(i)].adapter);
    }
    return;
  }
  const auto pack = [&](const TensorParts& parts, const TensorShape& shape, const auto& place) {
    if (!parts.empty()) packing.pack(parts, shape, offset_of(shape.kind), place);
  };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const auto parts = layer_parts(config_, i);
    const auto shapes = layer_shapes(config_, i);
    for_each_tensor(pack, parts, shapes, layers_[static_cast<size_t>(i)]);
  }
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  pack(TensorParts{{std::string(kEmbeddingName), vocab}}, {.rows = vocab, .cols = hidden},
       embeddings_);
  pack(TensorParts{{std::string(kFinalNormName), hidden}},
       {.rows = hidden, .kind = ParameterKind::kNorm}, final_norm_);
  // One row, so it is packed as a vector.
  if (is_reward_model(config_))
    pack(TensorParts{{std::string(kScoreName), hidden}},
         {.rows = hidden, .kind = ParameterKind::kBias}, score_);
  else if (!config_.tie_embeddings)
    pack(TensorParts{{std::string(kHeadName), vocab}}, {.rows = vocab, .cols = hidden},
         whole_head());
}

std::vector<PackedTensor> PackedWeights::tensors() const {
  std::vector<PackedTensor> tensors;
  const Listing listing{tensors, base_ ? kAdapterDtype : dtype_};
  if (base_) {
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const auto parts = adapter_parts(config_, i);
      const auto shapes = adapter_shapes(config_);
      for_each_adapter([&](const TensorParts& names, const TensorShape& shape,
                           const Weight& place) { listing.add(names, shape.cols, 0, place); },
                       parts, shapes, layers_[static_cast<size_t>(i)].adapter);
    }
    return tensors;
  }
  const auto add = [&](const TensorParts& parts, const TensorShape& shape, const auto& place) {
    listing.add(parts, shape.cols, offset_of(shape.kind), place);
  };
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  add({{std::string(kEmbeddingName), vocab}}, {.cols = hidden}, embeddings_);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const auto parts = layer_parts(config_, i);
    const auto shapes = layer_shapes(config_, i);
    for_each_tensor(add, parts, shapes, layers_[static_cast<size_t>(i)]);
  }
  add({{std::string(kFinalNormName), hidden}}, {.kind = ParameterKind::kNorm}, final_norm_);
  if (is_reward_model(config_))
    add({{std::string(kScoreName), hidden}}, {.kind = ParameterKind::kBias}, score_);
  else if (!config_.tie_embeddings)
    add({{std::string(kHeadName), vocab}}, {.cols = hidden}, whole_head());
  return tensors;
}

void PackedWeights::read(const Stream& stream, const PackedTensor& tensor, int64_t first,
                         Matrix rows) const {
  TR_CHECK(first >= 0 && first + rows.rows <= tensor.rows, "rows [{}, {}) of {}", first,
           first + rows.rows, tensor.name);
  first += tensor.first_row;
  if (tensor.cols == 0) {
    TR_CHECK(rows.cols == 1 && rows.stride == 1, "a vector is read as one column");
    const auto from =
        tensor.vector.subspan(static_cast<size_t>(first), static_cast<size_t>(rows.rows));
    const auto begin = reinterpret_cast<const std::byte*>(from.data()) - buffer_.bytes().data;
    copy(stream, bytes_of(std::span(rows.data, from.size())),
         buffer_.bytes().part(static_cast<size_t>(begin), from.size_bytes()));
    return wait(stream);
  }
  for (int64_t done = 0; done < rows.rows;) {
    // The rows may reach over several matrices of a stack, whose packed forms do not continue each
    // other.
    const int64_t matrix = (first + done) / tensor.matrices.first.out;
    const int64_t row = (first + done) % tensor.matrices.first.out;
    const int64_t count = std::min(rows.rows - done, tensor.matrices.first.out - row);
    unpack_rows(stream, tensor.matrices.at(matrix), row, rows.slice_rows(done, done + count));
    done += count;
  }
}
float PackedWeights::embedding_scale() const {
  if (!config_.scaled_embeddings) return 1;
  const float scale = std::sqrt(static_cast<float>(config_.hidden_size));
  // transformers holds the factor in the dtype of the embeddings, so in bfloat16 it is rounded
  // (Gemma).
  return dtype_ == Dtype::kBF16 ? to_float(to_bf16(scale)) : scale;
}

}  // namespace tailrace
