// A GGUF file made a Hugging Face folder: config.json, generation_config.json, model.safetensors,
// tokenizer.json, tokenizer_config.json, and import.json, which says where all of it comes from.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"

namespace tailrace {

struct GgufImport {
  int64_t num_parameters = 0;
  Dtype dtype = Dtype::kBF16;            // of all tensors that were written
  int64_t num_rounded = 0;               // values that it does not hold exactly
  std::map<std::string, int64_t> types;  // tensors of the file, by the name of their type
  std::vector<std::string> notes;
};

// Into `directory`, which exists. `dtype`: F32, F16 or BF16; none: that of the file's matrices
// where all have one of these, else BF16, in which such models are published. Throws UserError; the
// caller then removes the folder.
GgufImport import_gguf(const std::filesystem::path& file, const std::filesystem::path& directory,
                       std::optional<Dtype> dtype);

}  // namespace tailrace
