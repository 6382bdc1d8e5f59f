#include "core/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "core/base/random.h"
#include "core/model/reward_head.h"
#include "kernels/base/check.h"

namespace tailrace {

// Tensors of the file that make one vector or matrix, one behind the other without a gap.
struct TensorGroup {
  struct Part {
    std::string name;
    int64_t rows = 0;
    bool stacked = false;  // it has the matrices of the whole stack
  };
  ParameterKind kind = ParameterKind::kMatrix;
  std::vector<Part> parts;
  int64_t cols = 0;   // 0: a vector
  int64_t count = 1;  // matrices that the rows make

  int64_t rows() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.rows;
    return sum;
  }
};

namespace {

constexpr int64_t kOffsetAlignment = 16;  // floats; one cache line

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

// FNV-1a: a number for a name that no library version changes.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

using LayerTable = LayerOf<TensorGroup, TensorGroup, TensorGroup>;

// The matrices of all experts, in one tensor or one by one.
TensorGroup expert_group(const ModelConfig& c, ParameterKind kind, std::string_view fused,
                         std::initializer_list<std::string_view> parts, int64_t rows,
                         int64_t cols) {
  TensorGroup group{kind, {}, cols, c.num_experts};
  if (c.fused_experts) {
    group.parts.push_back(
        {std::string(fused), c.num_experts * std::ssize(parts) * rows, /*stacked=*/true});
    return group;
  }
  for (int64_t e = 0; e < c.num_experts; ++e)
    for (const std::string_view part : parts)
      group.parts.push_back({fmt::format("mlp.experts.{}.{}.weight", e, part), rows});
  return group;
}

// The tensors of a layer as the file names them, below "model.layers.N.".
LayerTable layer_table(const ModelConfig& c, int64_t layer) {
  using enum ParameterKind;
  const int64_t hidden = c.hidden_size, ffn = c.intermediate_size;
  const bool sparse = c.is_sparse(layer);
  const TensorGroup none;
  return {
      .input_norm = {kNorm, {{"input_layernorm.weight", hidden}}},
      .qkv = {kMatrix,
              {{"self_attn.q_proj.weight", c.q_size()},
               {"self_attn.k_proj.weight", c.kv_size()},
               {"self_attn.v_proj.weight", c.kv_size()}},
              hidden},
      .qkv_bias = c.qkv_bias ? TensorGroup{kBias,
                                           {{"self_attn.q_proj.bias", c.q_size()},
                                            {"self_attn.k_proj.bias", c.kv_size()},
                                            {"self_attn.v_proj.bias", c.kv_size()}}}
                             : none,
      .q_norm = c.qk_norm ? TensorGroup{kNorm, {{"self_attn.q_norm.weight", c.head_dim}}} : none,
      .k_norm = c.qk_norm ? TensorGroup{kNorm, {{"self_attn.k_norm.weight", c.head_dim}}} : none,
      .o = {kResidual, {{"self_attn.o_proj.weight", hidden}}, c.q_size()},
      .o_bias = c.o_bias ? TensorGroup{kBias, {{"self_attn.o_proj.bias", hidden}}} : none,
      .o_norm =
          c.post_norms ? TensorGroup{kNorm, {{"post_attention_layernorm.weight", hidden}}} : none,
      .mlp_norm = {kNorm,
                   {{c.post_norms ? "pre_feedforward_layernorm.weight"
                                  : "post_attention_layernorm.weight",
                     hidden}}},
      .gate_up = sparse ? none
                        : TensorGroup{kMatrix,
                                      {{"mlp.gate_proj.weight", ffn}, {"mlp.up_proj.weight", ffn}},
                                      hidden},
      .gate_up_bias =
          c.mlp_bias && !sparse
              ? TensorGroup{kBias, {{"mlp.gate_proj.bias", ffn}, {"mlp.up_proj.bias", ffn}}}
              : none,
      .down = sparse ? none : TensorGroup{kResidual, {{"mlp.down_proj.weight", hidden}}, ffn},
      .down_bias =
          c.mlp_bias && !sparse ? TensorGroup{kBias, {{"mlp.down_proj.bias", hidden}}} : none,
      .down_norm =
          c.post_norms ? TensorGroup{kNorm, {{"post_feedforward_layernorm.weight", hidden}}} : none,
      .router = sparse ? TensorGroup{kMatrix, {{"mlp.gate.weight", c.num_experts}}, hidden} : none,
      .choice_bias = sparse && c.choice_bias
                         ? TensorGroup{kChoice, {{std::string(kChoiceBiasName), c.num_experts}}}
                         : none,
      .expert_gate_up = sparse ? expert_group(c, kMatrix, kFusedExpertsName,
                                              {"gate_proj", "up_proj"}, c.expert_size, hidden)
                               : none,
      .expert_down = sparse ? expert_group(c, kResidual, "mlp.experts.down_proj", {"down_proj"},
                                           hidden, c.expert_size)
                            : none};
}

// The matrices of a layer's adapter as peft names them, below "base_model.model.model.layers.N.".
AdapterOf<TensorGroup> adapter_table(const ModelConfig& c) {
  using enum LoraTarget;
  const int64_t hidden = c.hidden_size, ffn = c.intermediate_size, rank = c.lora.rank;
  const auto module = [](LoraTarget target) {
    return fmt::format("{}.{}", target < kGate ? "self_attn" : "mlp", name_of(target));
  };
  const auto in = [&](std::initializer_list<LoraTarget> targets, int64_t cols) {
    TensorGroup group{ParameterKind::kLowRankIn, {}, cols};
    for (const LoraTarget target : targets)
      if (c.lora.has(target)) group.parts.push_back({module(target) + ".lora_A.weight", rank});
    return group;
  };
  const auto out = [&](LoraTarget target, int64_t rows) {
    TensorGroup group{ParameterKind::kLowRankOut, {}, rank};
    if (c.lora.has(target)) group.parts.push_back({module(target) + ".lora_B.weight", rows});
    return group;
  };
  return {.qkv_a = in({kQ, kK, kV}, hidden),
          .q_b = out(kQ, c.q_size()),
          .k_b = out(kK, c.kv_size()),
          .v_b = out(kV, c.kv_size()),
          .o_a = in({kO}, c.q_size()),
          .o_b = out(kO, hidden),
          .gate_up_a = in({kGate, kUp}, hidden),
          .gate_b = out(kGate, ffn),
          .up_b = out(kUp, ffn),
          .down_a = in({kDown}, ffn),
          .down_b = out(kDown, hidden)};
}

std::string adapter_prefix(int64_t layer) { return "base_model.model." + layer_prefix(layer); }

void init_tensor(const ModelConfig& config, uint64_t seed, const ParameterInfo& info,
                 std::span<float> values) {
  double variance = 1.0 / static_cast<double>(info.shape.back());  // 1 / fan_in
  switch (info.kind) {
    case ParameterKind::kEmbedding:
      // Untied, the residual stream begins with unit variance (scaled, by the factor). Tied, the
      // same rows are the head, and 1 / hidden gives logits of unit variance.
      if (!config.tie_embeddings && !config.scaled_embeddings) variance = 1;
      break;
    case ParameterKind::kMatrix:
      break;
    case ParameterKind::kResidual:
      // Two products a layer are added to the stream: so scaled, their sum over all layers stays of
      // the order of one of them (GPT-2, Radford et al. 2019).
      variance /= 2.0 * static_cast<double>(config.num_layers);
      break;
    case ParameterKind::kNorm:
      std::ranges::fill(values, config.offset_norms ? 0.0f : 1.0f);
      return;
    case ParameterKind::kBias:
    case ParameterKind::kChoice:
    case ParameterKind::kLowRankOut:
      std::ranges::fill(values, 0.0f);
      return;
    case ParameterKind::kLowRankIn:
      break;
  }
  // By name and not by place: another number of layers leaves the tensors that both have as they
  // were.
  Rng rng(mix({seed, hash_name(info.name)}));
  const double deviation = std::sqrt(variance);
  if (info.kind == ParameterKind::kLowRankIn) {
    // peft begins A with kaiming_uniform_(a=sqrt(5)), which is uniform within 1 / sqrt(fan_in), and
    // B with zeros: the first update starts from the base model.
    for (float& value : values) value = static_cast<float>(deviation * (2 * rng.uniform() - 1));
    return;
  }
  for (float& value : values) value = static_cast<float>(deviation * rng.normal());
}

}  // namespace

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  using enum ParameterKind;
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  append("", {kEmbedding, {{std::string(kEmbeddingName), vocab}}, hidden});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerTable table = layer_table(config, layer);
    for_each_tensor([&](const TensorGroup& group) { append(layer_prefix(layer), group); }, table);
    // A token goes through experts_per_token experts, and the others of the layer are idle for it.
    for (const TensorGroup* experts : {&table.expert_gate_up, &table.expert_down})
      num_idle_ += experts->rows() / experts->count * experts->cols *
                   (experts->parts.empty() ? 0 : config.num_experts - config.experts_per_token);
  }
  append("", {kNorm, {{std::string(kFinalNormName), hidden}}});
  if (is_reward_model(config)) {
    // As a bias: it begins with zeros, and products read it in float32.
    append("", {kBias, {{std::string(kScoreName), 1}}, hidden});
  } else if (!config.tie_embeddings) {
    append("", {kMatrix, {{std::string(kHeadName), vocab}}, hidden});
  }
  align();
}

ParameterLayout ParameterLayout::of_adapter(const ModelConfig& config) {
  ParameterLayout layout;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const AdapterOf<TensorGroup> table = adapter_table(config);
    for_each_adapter([&](const TensorGroup& group) { layout.append(adapter_prefix(layer), group); },
                     table);
  }
  layout.align();
  return layout;
}

int64_t ParameterLayout::num_parameters() const {
  int64_t count = 0;
  for (const ParameterInfo& info : entries_) count += info.size;
  return count;
}

int64_t ParameterLayout::num_active_parameters() const { return num_parameters() - num_idle_; }

void ParameterLayout::align() {
  size_ = (size_ + kOffsetAlignment - 1) / kOffsetAlignment * kOffsetAlignment;
}

void ParameterLayout::append(const std::string& prefix, const TensorGroup& group) {
  // Once a group: a gap between its parts would break their one matrix.
  align();
  for (const TensorGroup::Part& part : group.parts) {
    ParameterInfo info{.name = prefix + part.name,
                       .kind = group.kind,
                       .shape = {part.rows},
                       .offset = size_,
                       .size = part.rows};
    if (group.cols > 0) {
      if (part.stacked) info.shape = {group.count, part.rows / group.count};
      info.shape.push_back(group.cols);
      info.size *= group.cols;
    }
    size_ += info.size;
    index_.emplace(info.name, entries_.size());
    entries_.push_back(std::move(info));
  }
}

const ParameterInfo& ParameterLayout::at(std::string_view name) const {
  const auto found = index_.find(name);
  TR_CHECK(found != index_.end(), "no parameter '{}'", name);
  return entries_[found->second];
}

Parameters::Parameters(const ParameterLayout& layout, Device device)
    : layout_(&layout), buffer_(static_cast<size_t>(bytes(layout)), device) {}

int64_t Parameters::bytes(const ParameterLayout& layout) {
  return layout.size() * static_cast<int64_t>(sizeof(float));
}

Parameters::Place Parameters::place_of(std::string_view name) const {
  const ParameterInfo& info = layout_->at(name);
  return {info.offset, info.size};
}

Tensor Parameters::tensor(std::string_view name) {
  const ParameterInfo& info = layout_->at(name);
  TR_CHECK(info.shape.size() == 2, "'{}' has {} dimensions", name, info.shape.size());
  return {reinterpret_cast<std::byte*>(values(name).data()), info.shape[0], info.shape[1],
          Dtype::kF32, device()};
}

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

namespace {

// Its parts lie one behind the other, so the first one's address is the matrix's. A family that has
// none gets an empty view.
template <class View>
void view_of(const TensorGroup& group, const std::string& prefix, Parameters& parameters,
             View& tensor) {
  if (group.parts.empty()) return;
  float* first = parameters.values(prefix + group.parts.front().name).data();
  if constexpr (std::is_same_v<View, std::span<float>>) {
    tensor = {first, static_cast<size_t>(group.rows())};
  } else if constexpr (std::is_same_v<View, MatrixStack<float>>) {
    tensor = {first, group.count, group.rows() / group.count, group.cols};
  } else {
    tensor = {first, group.rows(), group.cols};
  }
}

void shape_of(const TensorGroup& group, TensorShape& shape) {
  shape = {group.rows() / group.count, group.cols, group.count, group.kind};
}

void parts_of(const TensorGroup& group, const std::string& prefix, TensorParts& names) {
  for (const TensorGroup::Part& part : group.parts)
    names.push_back({prefix + part.name, part.rows});
}

}  // namespace

LayerTensors<float> layer_tensors(const ModelConfig& config, Parameters& parameters,
                                  int64_t layer) {
  const LayerTable table = layer_table(config, layer);
  LayerTensors<float> tensors;
  for_each_tensor([&](const TensorGroup& group,
                      auto& tensor) { view_of(group, layer_prefix(layer), parameters, tensor); },
                  table, tensors);
  return tensors;
}

LayerOf<TensorShape, TensorShape, TensorShape> layer_shapes(const ModelConfig& config,
                                                            int64_t layer) {
  const LayerTable table = layer_table(config, layer);
  LayerOf<TensorShape, TensorShape, TensorShape> shapes;
  for_each_tensor(shape_of, table, shapes);
  return shapes;
}

LayerOf<TensorParts, TensorParts, TensorParts> layer_parts(const ModelConfig& config,
                                                           int64_t layer) {
  const LayerTable table = layer_table(config, layer);
  LayerOf<TensorParts, TensorParts, TensorParts> parts;
  for_each_tensor([&](const TensorGroup& group,
                      TensorParts& names) { parts_of(group, layer_prefix(layer), names); },
                  table, parts);
  return parts;
}

AdapterOf<Matrix> adapter_tensors(const ModelConfig& config, Parameters& parameters,
                                  int64_t layer) {
  const AdapterOf<TensorGroup> table = adapter_table(config);
  AdapterOf<Matrix> tensors;
  for_each_adapter(
      [&](const TensorGroup& group, Matrix& tensor) {
        view_of(group, adapter_prefix(layer), parameters, tensor);
      },
      table, tensors);
  return tensors;
}

AdapterOf<TensorShape> adapter_shapes(const ModelConfig& config) {
  const AdapterOf<TensorGroup> table = adapter_table(config);
  AdapterOf<TensorShape> shapes;
  for_each_adapter(shape_of, table, shapes);
  return shapes;
}

AdapterOf<TensorParts> adapter_parts(const ModelConfig& config, int64_t layer) {
  const AdapterOf<TensorGroup> table = adapter_table(config);
  AdapterOf<TensorParts> parts;
  for_each_adapter([&](const TensorGroup& group,
                       TensorParts& names) { parts_of(group, adapter_prefix(layer), names); },
                   table, parts);
  return parts;
}

std::string_view head_name(const ModelConfig& config) {
  if (is_reward_model(config)) return kScoreName;
  return config.tie_embeddings ? kEmbeddingName : kHeadName;
}

void init_parameters(const ModelConfig& config, uint64_t seed, Parameters& parameters) {
  for (const ParameterInfo& info : parameters.layout().entries()) {
    init_tensor(config, seed, info, parameters.vector(info.name));
  }
}

}  // namespace tailrace
