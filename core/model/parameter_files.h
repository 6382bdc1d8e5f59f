// Weights as Hugging Face files: model.safetensors, or its shards and their index.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/model/model_config.h"
#include "core/model/parameters.h"

namespace tailrace {

// Reads model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16) into
// `parameters`. Throws UserError naming file and tensor: missing, unknown, cut, wrong shape or
// dtype, not finite. Ignored, as transformers does: stored rotary frequencies, and a head when the
// config says tied. The bias of a choice of experts is 0 where the files have none.
// `file`: a file of the folder that alone is read; empty: the usual ones.
void load_parameters(const std::filesystem::path& directory, const ModelConfig& config,
                     Parameters& parameters, const std::string& file = "");
// Those that the headers alone show: what is missing, unknown, or of another shape or dtype. For
// who is about to take memory by the sizes in `config`, which may not be those of the files.
void check_headers(const std::filesystem::path& directory, const ModelConfig& config);
// All refusals of load_parameters(), a MiB in memory at a time.
void check_parameters(const std::filesystem::path& directory, const ModelConfig& config);
// The values of a folder's tensors for who needs each of them once, in memory of a few tensors.
//
// Thread: one at a time.
class StreamedParameters {
 public:
  // Throws UserError as load_parameters() does; read() too.
  StreamedParameters(const std::filesystem::path& directory, const ModelConfig& config);
  ~StreamedParameters();
  // A tensor of the layout of `config`. The view ends when kKept others have been read since.
  std::span<const float> read(std::string_view name);
  static constexpr size_t kKept = 3;  // as many as one packed matrix is made of

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// Writes config.json and model.safetensors, each by write, fsync, rename. Makes the folder. With
// config.shard_bytes the weights are in files of at most so many bytes (more where one tensor has
// them), and the index that names them comes last.
// Matrices are BF16 where config.dtype is, else F32; the few values of norms and biases are F32.
// That is what products read of PackedWeights of that dtype: nothing is lost that they see.
void save_model(const std::filesystem::path& directory, const ModelConfig& config,
                const Parameters& parameters);
// All of `parameters` as F32 tensors, with `metadata` beside the format. Throws UserError as
// write_safetensors() does.
void save_parameters(const std::filesystem::path& path, const Parameters& parameters,
                     std::map<std::string, std::string> metadata = {});

}  // namespace tailrace
