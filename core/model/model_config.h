// The shape of a decoder, read from a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tailrace {

// A Llama-family decoder: RMSNorm, rotary positions (half-rotation), grouped-query attention,
// SwiGLU.
struct ModelConfig {
  std::string architecture = "LlamaForCausalLM";
  int64_t hidden_size = 0, intermediate_size = 0;
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_positions = 0;
  double rms_norm_eps = 1e-5, rope_theta = 10000;
  bool tie_embeddings = false;
  int64_t bos_token = -1;                // -1: none
  std::vector<int64_t> eos_tokens = {};  // instruct models list several ends of a turn

  int64_t q_size() const { return num_heads * head_dim; }      // of all query heads together
  int64_t kv_size() const { return num_kv_heads * head_dim; }  // of all keys, and of all values
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  // Inverse frequencies of the rotary embedding, [head_dim / 2].
  std::vector<double> inv_freq() const;
};

// Reads and checks DIR/config.json. Throws UserError with file and key: an architecture or feature
// that is not supported (rope_scaling, biases, another activation) is refused by name, never
// ignored.
ModelConfig read_model_config(const std::filesystem::path& directory);
// The config.json that transformers reads.
void write_model_config(const ModelConfig& config, const std::filesystem::path& directory);
// Throws UserError when sizes do not fit each other (`where` names the file or section).
void validate(const ModelConfig& config, const std::string& where);

}  // namespace tailrace
