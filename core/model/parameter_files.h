// Weights as Hugging Face files: model.safetensors, or its shards and their index.
#pragma once

#include <filesystem>

#include "core/model/model_config.h"
#include "core/model/parameters.h"

namespace tailrace {

// Reads model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16) into
// `parameters`. Throws UserError naming file and tensor: missing, unknown, cut, wrong shape or
// dtype, not finite. Ignored, as transformers does: stored rotary frequencies, and a head when the
// config says tied.
void load_parameters(const std::filesystem::path& directory, const ModelConfig& config,
                     Parameters& parameters);
// The same refusals, one tensor in memory at a time.
void check_parameters(const std::filesystem::path& directory, const ModelConfig& config);
// Writes config.json and model.safetensors (F32), each by write, fsync, rename. Makes the folder.
void save_model(const std::filesystem::path& directory, const ModelConfig& config,
                const Parameters& parameters);

}  // namespace tailrace
