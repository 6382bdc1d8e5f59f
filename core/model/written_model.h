// Which tensor of a model goes into which file, and in which dtype.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/model_form.h"
#include "core/model/parameters.h"
#include "core/model/safetensors.h"

namespace tailrace {

struct WrittenFile {
  std::string name;
  std::vector<NamedTensor> tensors = {};
};

struct WrittenModel {
  std::vector<WrittenFile> files = {};
  bool is_indexed = false;   // more than one file, or an index of one
  bool is_narrowed = false;  // a matrix that came in float32 is written as bf16
  bool is_exact() const;     // all is float32
};

// As save_model() says. Borrows `parameters`.
WrittenModel written_model(const ModelConfig& config, const Parameters& parameters,
                           const ModelForm& form);
NamedTensor tensor_of(const Parameters& parameters, const ParameterInfo& info,
                      const std::string& name, Dtype dtype);
int64_t written_bytes(const NamedTensor& tensor);

}  // namespace tailrace
