// The models that the GPU benches measure: the sizes of Qwen2.5, and one so small that an emulated
// GPU runs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model_config.h"

namespace tailrace::gpu_bench {

// "mini", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b".
const std::vector<std::string>& geometry_names();

// TR_CHECKs the name: flags check what a person wrote.
ModelConfig geometry(const std::string& name, int64_t max_positions);

}  // namespace tailrace::gpu_bench
