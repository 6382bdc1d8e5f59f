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
#include "core/model/model_form.h"
#include "core/model/parameters.h"

namespace tailrace {

// The float32 weights that are trained, in a checkpoint whose other files round a tensor. Its
// metadata say in which dtype products read them (kComputeKey: f32 or bf16).
inline constexpr const char* kMasterFile = "master.safetensors";
inline constexpr const char* kComputeKey = "compute";

// Reads model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16) into
// `parameters`. Throws UserError naming file and tensor: missing, unknown, cut, wrong shape or
// dtype, not finite. Ignored, as transformers does: stored rotary frequencies, and a head when the
// config says tied. The bias of a choice of experts is 0 where the files have none.
// `file`: a file of the folder that alone is read; empty: kMasterFile, where there is one, else the
// usual ones.
void load_parameters(const std::filesystem::path& directory, const ModelConfig& config,
                     Parameters& parameters, const std::string& file = "");
// The refusals that the headers alone show: tensors missing, unknown, or of another shape or dtype.
// For a caller about to take memory by the sizes in `config`, which may not be those of the files.
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

// Writes config.json and the weights, each file by write, fsync, rename. Makes the folder. An
// index, which names the files, comes last. True: the files hold every bit of `parameters`.
//
// In the form of the folder that the model came from: the text of its config.json, its files with
// the tensors that each of them has, and the dtype of each tensor, but that matrices of float32 are
// BF16 where config.dtype is. Rotary frequencies are left out. Throws UserError, with the tensor,
// for a value that float16 does not hold.
// Without a form, matrices are BF16 where config.dtype is, else F32, and the few values of norms
// and biases are F32: that is what products read of PackedWeights of that dtype, and nothing is
// lost that they see. The weights are in model.safetensors or, with config.shard_bytes, in files of
// at most so many bytes (more where one tensor has them).
bool save_model(const std::filesystem::path& directory, const ModelConfig& config,
                const Parameters& parameters, const ModelForm& form = {});
// All of `parameters` as F32 tensors, with `metadata` beside the format. Throws UserError as
// write_safetensors() does.
void save_parameters(const std::filesystem::path& path, const Parameters& parameters,
                     std::map<std::string, std::string> metadata = {});

}  // namespace tailrace
