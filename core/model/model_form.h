// How a folder has its model: names, files and dtypes of the tensors, and the words of its config.
// A model that is trained is written in the form in which it came, so that whoever could load the
// one can load the other.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"

namespace tailrace {

struct ModelForm {
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::kF32;
  };
  struct File {
    std::string name;
    std::vector<Tensor> tensors = {};  // in the order of their data
  };

  std::string config = {};       // text of config.json; empty: it is made from a ModelConfig
  std::string generation = {};   // text of generation_config.json; empty: there is none
  std::vector<File> files = {};  // empty: by ModelConfig::shard_bytes
  std::string index = {};        // text of the metadata of an index; empty: there is no index
  bool keeps_dtypes = true;      // false: those of ModelConfig::dtype
};

// Throws UserError for a folder whose weights or config cannot be read.
ModelForm read_model_form(const std::filesystem::path& directory);

}  // namespace tailrace
