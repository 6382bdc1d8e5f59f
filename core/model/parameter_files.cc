#include "core/model/parameter_files.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/base/nearest.h"
#include "core/model/parameters.h"
#include "core/model/safetensors.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxIndexBytes = 1 << 28;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// The first names in a folder, for a message.
std::string listing(const std::filesystem::path& directory) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  if (names.empty()) return "nothing";
  if (names.size() > kShown) {
    names.resize(kShown);
    names.push_back("...");
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// The tensors of a folder, whether in one file or in shards.
class Checkpoint {
 public:
  // `only`: the file that is read; empty: the usual ones.
  explicit Checkpoint(const std::filesystem::path& directory, const std::string& only = "")
      : directory_(directory) {
    const std::string single = only.empty() ? kSingleFile : only;
    // The single file first, as transformers looks.
    if (!only.empty() || std::filesystem::exists(directory / single)) {
      list_ = directory / single;
      const SafetensorsFile& file = open(single);
      for (const auto& [name, view] : file.tensors()) places_[name] = single;
    } else if (std::filesystem::exists(directory / kIndexFile)) {
      list_ = directory / kIndexFile;
      read_index(list_);
    } else {
      throw UserError(
          "{}: found neither {} nor {}; a model is a Hugging Face folder with safetensors "
          "weights. The folder has {}",
          directory.string(), kSingleFile, kIndexFile, listing(directory));
    }
  }

  const std::map<std::string, std::string, std::less<>>& places() const { return places_; }

  // The file of a tensor and its view.
  std::pair<std::string, const TensorView*> find(const std::string& name) {
    const auto place = places_.find(name);
    if (place == places_.end()) {
      std::vector<std::string> names;
      for (const auto& [known, file] : places_) names.push_back(known);
      throw UserError(
          "{}: tensor '{}' is missing; the config asks for it. There are {} tensors; the nearest "
          "is '{}'",
          list_.string(), name, names.size(), nearest_name(name, names));
    }
    const SafetensorsFile& file = open(place->second);
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) {
      throw UserError("{}: tensor '{}' is missing; {} says that it is here", file.path().string(),
                      name, kIndexFile);
    }
    return {file.path().string(), &found->second};
  }

 private:
  // Mapped once: a shard holds hundreds of tensors.
  const SafetensorsFile& open(const std::string& name) {
    auto& file = files_[name];
    if (!file) file = std::make_unique<SafetensorsFile>(directory_ / name);
    return *file;
  }

  void read_index(const std::filesystem::path& path) {
    const Json json = read_json_object(path, kMaxIndexBytes);
    if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
      throw UserError("{}: it has no object weight_map", path.string());
    }
    for (const auto& [name, value] : json["weight_map"].items()) {
      const std::string file = value.is_string() ? value.get<std::string>() : "";
      // A name, not a path: an index must not reach out of its folder.
      if (file.empty() || file == ".." || file.find('/') != std::string::npos) {
        throw UserError(
            "{}: weight_map gives '{}' the file {}; it must be a file name in the same folder",
            path.string(), name, value.dump());
      }
      places_[name] = file;
    }
  }

  std::filesystem::path directory_;
  std::filesystem::path list_;  // the file that says which tensors there are
  std::map<std::string, std::string, std::less<>> places_;  // tensor -> file name
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

// Old Llama files also store the rotary frequencies, which follow from the config, and some with
// tied embeddings the same matrix again as head.
bool is_ignored(const ModelConfig& config, const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || (config.tie_embeddings && name == kHeadName);
}

void refuse_unknown(const Checkpoint& checkpoint, const ModelConfig& config,
                    const ParameterLayout& layout) {
  std::set<std::string_view> known;
  for (const ParameterInfo& info : layout.entries()) known.insert(info.name);
  for (const auto& [name, file] : checkpoint.places()) {
    if (known.contains(name) || is_ignored(config, name)) continue;
    throw UserError(
        "{}: tensor '{}' is unknown to a {} of this config ({} layers{}); leaving it out would "
        "change the numbers",
        file, name, config.architecture, config.num_layers,
        config.tie_embeddings ? ", tied embeddings" : "");
  }
}

// Where the file has a tensor: tied embeddings may be there under the name of the head alone.
std::string name_in_file(const Checkpoint& checkpoint, const ModelConfig& config,
                         const std::string& name) {
  const bool as_head = config.tie_embeddings && name == kEmbeddingName &&
                       !checkpoint.places().contains(name) &&
                       checkpoint.places().contains(kHeadName);
  return as_head ? std::string(kHeadName) : name;
}

void load_tensor(Checkpoint& checkpoint, const ModelConfig& config, const ParameterInfo& info,
                 std::span<float> values) {
  const auto [path, view] = checkpoint.find(name_in_file(checkpoint, config, info.name));
  if (view->shape != info.shape) {
    throw UserError("{}: tensor '{}' has the shape [{}]; the config asks for [{}]", path, info.name,
                    fmt::join(view->shape, ", "), fmt::join(info.shape, ", "));
  }
  if (view->dtype != Dtype::kF32 && view->dtype != Dtype::kF16 && view->dtype != Dtype::kBF16) {
    throw UserError("{}: tensor '{}' is not of a floating dtype; accepted are F32, F16 and BF16",
                    path, info.name);
  }
  to_float(*view, values);
  // A NaN would show as a policy that samples nonsense; here it has a tensor and an element.
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw UserError("{}: tensor '{}' is {} at element {}; these weights cannot be used", path,
                      info.name, values[i], i);
    }
  }
}

}  // namespace

void load_parameters(const std::filesystem::path& directory, const ModelConfig& config,
                     Parameters& parameters, const std::string& file) {
  Checkpoint checkpoint(directory, file);
  // Before gigabytes are converted.
  refuse_unknown(checkpoint, config, parameters.layout());
  for (const ParameterInfo& info : parameters.layout().entries()) {
    load_tensor(checkpoint, config, info, parameters.vector(info.name));
  }
}

void check_parameters(const std::filesystem::path& directory, const ModelConfig& config) {
  const ParameterLayout layout(config);
  Checkpoint checkpoint(directory);
  refuse_unknown(checkpoint, config, layout);
  // Tensor after tensor in one buffer: a check needs no memory for a whole model.
  std::vector<float> values;
  for (const ParameterInfo& info : layout.entries()) {
    values.resize(static_cast<size_t>(info.size));
    load_tensor(checkpoint, config, info, values);
  }
}

namespace {

// Matrices in `matrices`, the rest as it is.
void write_tensors(const std::filesystem::path& path, const Parameters& parameters,
                   Dtype matrices) {
  std::vector<NamedTensor> tensors;
  for (const ParameterInfo& info : parameters.layout().entries()) {
    tensors.push_back({.name = info.name,
                       .view = {.dtype = Dtype::kF32,
                                .shape = info.shape,
                                .data = std::as_bytes(parameters.vector(info.name))},
                       .written_as = info.shape.size() == 2 ? matrices : Dtype::kF32});
  }
  // transformers refuses a file whose metadata names no format.
  write_safetensors(path, tensors, {{"format", "pt"}});
}

}  // namespace

void save_model(const std::filesystem::path& directory, const ModelConfig& config,
                const Parameters& parameters) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UserError("{}: cannot make the folder: {}", directory.string(), error.message());
  ModelConfig written = config;
  if (written.dtype != Dtype::kBF16) written.dtype = Dtype::kF32;
  // First, so that where the weights are, their config is too.
  write_model_config(written, directory);
  write_tensors(directory / kSingleFile, parameters, written.dtype);
}

void save_parameters(const std::filesystem::path& path, const Parameters& parameters) {
  write_tensors(path, parameters, Dtype::kF32);
}

}  // namespace tailrace
