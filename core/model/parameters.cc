#include "core/model/parameters.h"

#include <cmath>

#include "core/base/random.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr int64_t kOffsetAlignment = 16;  // floats; one cache line

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

// FNV-1a: a number for a name that no library version changes.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

double init_deviation(const ModelConfig& config, const ParameterInfo& info) {
  if (info.name == kEmbeddingName && !config.tie_embeddings) return 1;
  double variance = 1.0 / static_cast<double>(info.shape.back());  // of a table, its width
  const bool adds_to_residual =
      info.name.ends_with("o_proj.weight") || info.name.ends_with("down_proj.weight");
  if (adds_to_residual) variance /= 2.0 * static_cast<double>(config.num_layers);
  return std::sqrt(variance);
}

template <class T, class Source>
LayerTensors<T> tensors_of(const ModelConfig& config, Source& parameters, int64_t layer) {
  const std::string prefix = layer_prefix(layer);
  auto matrix = [&](const char* name, int64_t rows) {
    MatrixView<T> first = parameters.matrix(prefix + name);
    first.rows = rows;  // the rest of its group follows without a gap, see ParameterLayout
    return first;
  };
  const int64_t qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  return {.input_norm = parameters.vector(prefix + "input_layernorm.weight"),
          .post_norm = parameters.vector(prefix + "post_attention_layernorm.weight"),
          .qkv = matrix("self_attn.q_proj.weight", qkv_rows),
          .o = matrix("self_attn.o_proj.weight", config.hidden_size),
          .gate_up = matrix("mlp.gate_proj.weight", 2 * config.intermediate_size),
          .down = matrix("mlp.down_proj.weight", config.hidden_size)};
}

}  // namespace

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const int64_t q_rows = config.num_heads * config.head_dim,
                kv_rows = config.num_kv_heads * config.head_dim;
  auto single = [&](std::string name, std::vector<int64_t> shape) {
    align();
    append(std::move(name), std::move(shape));
  };
  single(std::string(kEmbeddingName), {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    single(prefix + "input_layernorm.weight", {hidden});
    align();
    append(prefix + "self_attn.q_proj.weight", {q_rows, hidden});
    append(prefix + "self_attn.k_proj.weight", {kv_rows, hidden});
    append(prefix + "self_attn.v_proj.weight", {kv_rows, hidden});
    single(prefix + "self_attn.o_proj.weight", {hidden, q_rows});
    single(prefix + "post_attention_layernorm.weight", {hidden});
    align();
    append(prefix + "mlp.gate_proj.weight", {ffn, hidden});
    append(prefix + "mlp.up_proj.weight", {ffn, hidden});
    single(prefix + "mlp.down_proj.weight", {hidden, ffn});
  }
  single(std::string(kFinalNormName), {hidden});
  if (!config.tie_embeddings) single(std::string(kHeadName), {config.vocab_size, hidden});
  align();
}

void ParameterLayout::align() {
  size_ = (size_ + kOffsetAlignment - 1) / kOffsetAlignment * kOffsetAlignment;
}

void ParameterLayout::append(std::string name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  index_.emplace(name, entries_.size());
  entries_.push_back(
      {.name = std::move(name), .shape = std::move(shape), .offset = size_, .size = count});
  size_ += count;
}

const ParameterInfo& ParameterLayout::at(std::string_view name) const {
  const auto found = index_.find(name);
  TR_CHECK(found != index_.end(), "no parameter '{}'", name);
  return entries_[found->second];
}

Parameters::Parameters(const ParameterLayout& layout)
    : layout_(&layout), buffer_(static_cast<size_t>(layout.size()) * sizeof(float)) {}

std::span<float> Parameters::vector(std::string_view name) {
  const ParameterInfo& info = layout_->at(name);
  return flat().subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.size));
}

std::span<const float> Parameters::vector(std::string_view name) const {
  const ParameterInfo& info = layout_->at(name);
  return flat().subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.size));
}

Matrix Parameters::matrix(std::string_view name) {
  const ParameterInfo& info = layout_->at(name);
  TR_CHECK(info.shape.size() == 2, "'{}' has {} dimensions", name, info.shape.size());
  return {flat().data() + info.offset, info.shape[0], info.shape[1]};
}

ConstMatrix Parameters::matrix(std::string_view name) const {
  const ParameterInfo& info = layout_->at(name);
  TR_CHECK(info.shape.size() == 2, "'{}' has {} dimensions", name, info.shape.size());
  return {flat().data() + info.offset, info.shape[0], info.shape[1]};
}

LayerTensors<float> layer_tensors(const ModelConfig& config, Parameters& parameters,
                                  int64_t layer) {
  return tensors_of<float>(config, parameters, layer);
}

LayerTensors<const float> layer_tensors(const ModelConfig& config, const Parameters& parameters,
                                        int64_t layer) {
  return tensors_of<const float>(config, parameters, layer);
}

std::string_view head_name(const ModelConfig& config) {
  return config.tie_embeddings ? kEmbeddingName : kHeadName;
}

void init_parameters(const ModelConfig& config, uint64_t seed, Parameters& parameters) {
  for (const ParameterInfo& info : parameters.layout().entries()) {
    std::span<float> values = parameters.vector(info.name);
    if (!info.is_matrix()) {
      std::fill(values.begin(), values.end(), 1.0f);
      continue;
    }
    Rng rng(mix({seed, hash_name(info.name)}));
    const double deviation = init_deviation(config, info);
    for (float& value : values) value = static_cast<float>(deviation * rng.normal());
  }
}

}  // namespace tailrace
