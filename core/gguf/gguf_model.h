// The model that a GGUF file describes, in the words of Hugging Face: its config, and its tensors
// as transformers has them.
//
// Thread: any (immutable).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/gguf/gguf_file.h"
#include "core/model/model_config.h"
#include "core/model/parameters.h"

namespace tailrace {

// Where the values of a parameter are, and what the converter of llama.cpp did to them.
struct GgufSource {
  const GgufTensor* tensor = nullptr;
  // Heads whose rows are in pairs (i, i + half) one behind the other, for a rotation of neighbours;
  // 0: rows are in their order. A row of the parameter is row source_row() of the tensor.
  int64_t paired_heads = 0;
  float offset = 0;  // was added to each value
  int64_t source_row(int64_t row) const;
  int64_t row_size() const;  // of what is read at once: a value of a vector that is put in order
};

struct GgufArchitecture;

class GgufModel {
 public:
  // Borrows `file`. Throws UserError: an architecture, a feature or a tensor that is not read, a
  // tensor that is missing or of another shape.
  explicit GgufModel(const GgufFile& file);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  GgufSource source(const ParameterInfo& parameter) const;
  // The values of the rows from `first` on of a parameter, as many as `values` has room for.
  static void read_rows(const GgufSource& source, int64_t first, std::span<float> values);

 private:
  void check_tensors() const;

  const GgufFile& file_;
  const GgufArchitecture& its_;
  ModelConfig config_;
  ParameterLayout layout_;
};

// The architectures that are read, as files name them: "llama, qwen2, ...".
std::string all_gguf_architectures();

}  // namespace tailrace
