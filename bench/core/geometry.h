// The models that benches and their peers measure, by name. bench/peers/peer.py holds the same
// table; compare.py refuses to put two programs side by side whose sizes differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/report/report.h"
#include "core/model/model_config.h"
#include "kernels/base/dtype.h"

namespace tailrace {

struct GeometrySizes {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab;
};
// A Llama of these sizes with tied embeddings.
ModelConfig config_of(const GeometrySizes& sizes, int64_t max_positions);

// "tiny", "small", "grid" (the quickstart's), "medium" (the sizes of Qwen2.5-0.5B).
const std::vector<std::string>& geometry_names();

// A Llama with tied embeddings. TR_CHECKs the name: flags check what a person wrote.
ModelConfig geometry(const std::string& name, int64_t max_positions);

// Appends the sizes, under the names that every bench uses, and the dtype of the weights that
// products read.
void describe_geometry(const std::string& name, const ModelConfig& config, int64_t num_parameters,
                       Settings& settings, Dtype dtype = Dtype::kF32);

}  // namespace tailrace
