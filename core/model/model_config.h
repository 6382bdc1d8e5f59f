// The shape of a decoder, read from a Hugging Face config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/expert_shape.h"
#include "core/model/lora.h"
#include "core/model/rope_scaling.h"
#include "kernels/base/dtype.h"
#include "kernels/ops/swiglu.h"

namespace tailrace {

// A decoder of the Llama kind: RMSNorm, rotary positions (half-rotation), grouped-query attention,
// a gated MLP, by one MLP or by experts. What families add to that is a field here, and nothing
// else knows their names.
struct ModelConfig {
  std::string architecture = "LlamaForCausalLM";
  int64_t hidden_size = 0, intermediate_size = 0;
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_positions = 0;
  // The last rows of embeddings and head that stand for no token: many models round vocab_size up
  // (Qwen: 151,936 rows for 151,669 ids). Their untrained logits are no part of the policy: nothing
  // computes them, so that they are -infinity in sampling, scoring and training alike.
  int64_t padded_ids = 0;
  double rms_norm_eps = 1e-5, rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool tie_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // queries and keys are normalised head by head, before they are rotated
  bool offset_norms = false;  // every norm's factors are 1 + its weights
  bool post_norms = false;    // what a half of a layer gives is normalised before it is added
  // Embeddings are multiplied by sqrt(hidden_size), rounded to the dtype in which weights compute.
  bool scaled_embeddings = false;
  GateActivation activation = GateActivation::kSilu;
  int64_t attention_scalar = 0;  // scores are divided by its root; 0: head_dim
  double local_rope_theta = 0;   // of layers with a window, without scaling; 0: as all layers
  // [num_layers] positions that a layer's queries see, their own counted; 0: all. Empty: all do.
  std::vector<int64_t> windows = {};
  // Sparse layers, whose MLP is one of experts: a token goes to experts_per_token of num_experts,
  // each of expert_size. 0 experts: every layer is dense, with an MLP of intermediate_size.
  int64_t num_experts = 0, experts_per_token = 0, expert_size = 0;
  std::vector<bool> sparse = {};         // [num_layers] which are; empty without experts
  bool normalised_experts = false;       // the weights of a token's experts sum to 1
  double balance_coef = 0;               // of the loss that balances experts, for who trains
  bool choice_bias = false;              // a bias for each expert decides with whom a token goes
  bool fused_experts = false;            // its files have the experts of a layer in one tensor
  int64_t bos_token = -1;                // -1: none
  std::vector<int64_t> eos_tokens = {};  // instruct models list several ends of a turn
  Dtype dtype = Dtype::kF32;             // that its files are written in
  int64_t shard_bytes = 0;               // of the largest of its files of weights; 0: there is one
  Lora lora = {};                        // an adapter beside it, which no config.json knows

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  int64_t num_ids() const { return vocab_size - padded_ids; }  // those that may be sampled
  int64_t q_size() const { return num_heads * head_dim; }      // of all query heads together
  int64_t kv_size() const { return num_kv_heads * head_dim; }  // of all keys, and of all values
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  bool is_sparse(int64_t layer) const {
    return !sparse.empty() && sparse[static_cast<size_t>(layer)];
  }
  // How many of the layers before it are sparse.
  int64_t sparse_index(int64_t layer) const {
    return std::count(sparse.begin(), sparse.begin() + layer, true);
  }
  int64_t num_sparse_layers() const { return std::count(sparse.begin(), sparse.end(), true); }
  ExpertShape expert_shape() const {
    if (num_experts == 0) return {};
    return {static_cast<int32_t>(num_sparse_layers()), static_cast<int32_t>(experts_per_token),
            static_cast<int32_t>(num_experts)};
  }
  int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  bool has_local_rope(int64_t layer) const { return local_rope_theta > 0 && window(layer) > 0; }
  std::vector<double> inv_freq() const { return rope_inv_freq(rope_theta, head_dim, rope_scaling); }
  std::vector<double> local_inv_freq() const {
    return rope_inv_freq(local_rope_theta, head_dim, {});
  }
};

// Ends of names by which a file says how it has experts.
inline constexpr std::string_view kFusedExpertsName = "mlp.experts.gate_up_proj";
// DeepSeek's name for it; Qwen's files have none of their own.
inline constexpr std::string_view kChoiceBiasName = "mlp.gate.e_score_correction_bias";

// Reads and checks DIR/config.json. Throws UserError with file and key: an architecture or feature
// that is not supported (another activation or scaling of positions) is refused by name, never
// ignored. How the weights are stored is read off their files, and how many ids are tokens off
// tokenizer.json, where they are there. An id that the tokenizer lacks between two that it has is
// not taken for padding.
ModelConfig read_model_config(const std::filesystem::path& directory);
// ModelConfig::padded_ids of `config` with the tokenizer in a folder, by its file alone; 0: it has
// none. An end that the config names is no padding, since an end that nobody may sample would end
// nothing.
int64_t num_padded_ids(const std::filesystem::path& tokenizer, const ModelConfig& config);
// The config.json that transformers reads.
void write_model_config(const ModelConfig& config, const std::filesystem::path& directory);
// Throws UserError when sizes do not fit each other (`where` names the file or section).
void validate(const ModelConfig& config, const std::string& where);

}  // namespace tailrace
