// The smallest model whose versions are worth a delta: 15 K parameters.
#pragma once

#include "core/model/model_config.h"

namespace tailrace {

inline ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = 96;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  return config;
}

}  // namespace tailrace
