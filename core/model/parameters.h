// The tensors of a model as one flat float32 array under Hugging Face names.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/model/model_config.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// The kind of a tensor: decides how it begins (init_parameters) and whether it decays (optimizer).
enum class ParameterKind : uint8_t {
  kEmbedding,   // a row for each token
  kMatrix,      // of a product
  kResidual,    // of a product that is added to the residual stream
  kNorm,        // factors of a norm
  kBias,        // added to a product; also the one row that gives the score of a reward model
  kChoice,      // moves the choice of experts; no gradient reaches it
  kLowRankIn,   // A of an adapter
  kLowRankOut,  // B of an adapter
};

struct ParameterInfo {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  ParameterKind kind = ParameterKind::kMatrix;
  std::vector<int64_t> shape;    // [out, in] for matrices, [experts, out, in] for fused ones
  int64_t offset = 0, size = 0;  // in floats
};

struct TensorGroup;  // a row of the table in parameters.cc

// Names, shapes and places, in the order in which the forward pass meets them. A tied head has no
// entry of its own.
//
// Offsets are aligned to 16 floats, except that k and v follow q directly, and up follows gate: a
// fused product sees each of these groups as one matrix (see LayerOf). All experts of a layer
// follow each other so too, whether the files have them in one tensor or one by one.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);  // of a model, or of an adapter's base
  // The matrices of config.lora, as peft names them:
  // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
  static ParameterLayout of_adapter(const ModelConfig& config);
  // The layout of trained, published and saved weights: the adapter, where there is one.
  static ParameterLayout trained(const ModelConfig& config) {
    return config.lora ? of_adapter(config) : ParameterLayout(config);
  }
  const std::vector<ParameterInfo>& entries() const { return entries_; }
  const ParameterInfo& at(std::string_view name) const;  // TR_CHECKs that it exists
  int64_t size() const { return size_; }  // floats, padding included (padding stays 0)
  int64_t num_parameters() const;         // floats, without padding
  // The parameters that one token goes through: of a layer's experts as many as it chooses.
  int64_t num_active_parameters() const;

 private:
  ParameterLayout() = default;
  void align();
  void append(const std::string& prefix, const TensorGroup& group);

  std::vector<ParameterInfo> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  int64_t size_ = 0, num_idle_ = 0;
};

// One flat array in the order of a layout: weights, gradients or optimizer moments. The host reads
// and writes those of the CPU; those of another device are what ops take, and go through copies.
class Parameters {
  struct Place {
    int64_t offset, size;  // in floats
  };
  Place place_of(std::string_view name) const;
  template <class Byte>
  static auto values_at(Byte* memory, Place place) {
    using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return std::span(reinterpret_cast<Float*>(memory) + place.offset,
                     static_cast<size_t>(place.size));
  }

 public:
  explicit Parameters(const ParameterLayout& layout, Device device = {});  // zeros; borrows
  static int64_t bytes(const ParameterLayout& layout);
  Device device() const { return buffer_.bytes().device; }

  // For ops: memory of device().
  std::span<float> values() { return values_at(buffer_.bytes().data, {0, layout_->size()}); }
  std::span<const float> values() const {
    return values_at(buffer_.bytes().data, {0, layout_->size()});
  }
  std::span<float> values(std::string_view name) {
    return values_at(buffer_.bytes().data, place_of(name));
  }
  std::span<const float> values(std::string_view name) const {
    return values_at(buffer_.bytes().data, place_of(name));
  }
  Tensor tensor(std::string_view name);  // of a matrix
  DeviceBytes bytes() { return buffer_.bytes(); }
  ConstDeviceBytes bytes() const { return buffer_.bytes(); }

  // Views for parameters on the CPU alone.
  std::span<float> flat() { return buffer_.as<float>(); }
  std::span<const float> flat() const { return buffer_.as<float>(); }
  std::span<float> vector(std::string_view name);
  std::span<const float> vector(std::string_view name) const;
  Matrix matrix(std::string_view name);
  ConstMatrix matrix(std::string_view name) const;
  const ParameterLayout& layout() const { return *layout_; }

 private:
  const ParameterLayout* layout_;
  Buffer buffer_;
};

// One of each tensor of a decoder layer, with those that share an input as one matrix. Here it is
// said what a layer may have; the file's names, shapes and kinds are one table in parameters.cc.
//
// A layer has the tensors of a dense MLP or those of experts; StackType is that of the matrices of
// all experts.
template <class VectorType, class MatrixType, class StackType>
struct LayerOf {
  VectorType input_norm;     // [hidden]
  MatrixType qkv;            // [qkv_size, hidden]  q rows, then k, then v
  VectorType qkv_bias;       // [qkv_size]; this and other vectors are empty where a family has none
  VectorType q_norm;         // [head_dim]
  VectorType k_norm;         // [head_dim]
  MatrixType o;              // [hidden, q_size]
  VectorType o_bias;         // [hidden]
  VectorType o_norm;         // [hidden]  of what attention gives, before it is added
  VectorType mlp_norm;       // [hidden]
  MatrixType gate_up;        // [2 * intermediate, hidden]  gate rows, then up
  VectorType gate_up_bias;   // [2 * intermediate]
  MatrixType down;           // [hidden, intermediate]
  VectorType down_bias;      // [hidden]
  VectorType down_norm;      // [hidden]  the same of the MLP
  MatrixType router;         // [experts, hidden]
  VectorType choice_bias;    // [experts]
  StackType expert_gate_up;  // [experts, 2 * expert_size, hidden]
  StackType expert_down;     // [experts, hidden, expert_size]
};

// visit(a.input_norm, b.input_norm, ...) and so on for each member, in the order of the file.
template <class Visit, class... Layers>
void for_each_tensor(const Visit& visit, Layers&... layers) {
  visit(layers.input_norm...);
  visit(layers.qkv...);
  visit(layers.qkv_bias...);
  visit(layers.q_norm...);
  visit(layers.k_norm...);
  visit(layers.o...);
  visit(layers.o_bias...);
  visit(layers.o_norm...);
  visit(layers.mlp_norm...);
  visit(layers.gate_up...);
  visit(layers.gate_up_bias...);
  visit(layers.down...);
  visit(layers.down_bias...);
  visit(layers.down_norm...);
  visit(layers.router...);
  visit(layers.choice_bias...);
  visit(layers.expert_gate_up...);
  visit(layers.expert_down...);
}

// Views of weights or gradients, for who runs where they lie.
template <class T>
using LayerTensors = LayerOf<std::span<T>, MatrixView<T>, MatrixStack<T>>;
LayerTensors<float> layer_tensors(const ModelConfig& config, Parameters& parameters, int64_t layer);
// Rows and columns of what layer_tensors() gives; a vector has 0 columns, and what a family lacks 0
// rows. Of a stack those of one matrix.
struct TensorShape {
  int64_t rows = 0, cols = 0, count = 1;
  ParameterKind kind = ParameterKind::kMatrix;
};
LayerOf<TensorShape, TensorShape, TensorShape> layer_shapes(const ModelConfig& config,
                                                            int64_t layer);
// The tensors of the file that make each of them, by rows: name and rows (of a stack those of all
// its matrices). What a family lacks has none.
struct TensorPart {
  std::string name;
  int64_t rows = 0;
};
using TensorParts = std::vector<TensorPart>;
LayerOf<TensorParts, TensorParts, TensorParts> layer_parts(const ModelConfig& config,
                                                           int64_t layer);

// The same of the adapter of a layer, whose shapes are those of every layer; `parameters` are of
// of_adapter().
AdapterOf<Matrix> adapter_tensors(const ModelConfig& config, Parameters& parameters, int64_t layer);
AdapterOf<TensorShape> adapter_shapes(const ModelConfig& config);
AdapterOf<TensorParts> adapter_parts(const ModelConfig& config, int64_t layer);

// Names of the tensors outside the layers.
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";  // absent when tied

// The head as a parameter: kHeadName, or the embeddings when tied; of a reward model its kScoreName
// (reward_head.h), which lies in the place of a head whether or not the embeddings are tied.
std::string_view head_name(const ModelConfig& config);

// Matrices N(0, 1/fan_in), embeddings N(0, 1), residual outputs (o_proj, down_proj) also / sqrt(2
// layers), an untied head N(0, 1/hidden), factors of norms 1, biases and the head of a reward model
// 0; embeddings that are tied or scaled N(0, 1/hidden). Of an adapter A is uniform within
// 1/sqrt(fan_in), as peft has it, and B 0. Counter-based: a tensor depends on (seed, its name).
void init_parameters(const ModelConfig& config, uint64_t seed, Parameters& parameters);

}  // namespace tailrace
