#include "core/model/parameter_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/progress.h"
#include "core/model/config_text.h"
#include "core/model/parameters.h"
#include "core/model/safetensors.h"
#include "core/model/tensor_files.h"
#include "core/model/written_model.h"

namespace tailrace {
namespace {

// Old Llama files also store the rotary frequencies, which follow from the config, and some with
// tied embeddings the same matrix again as head.
bool is_ignored(const ModelConfig& config, const std::string& name) {
  return name.ends_with(kStoredFrequencies) || (config.tie_embeddings && name == kHeadName);
}

void refuse_unknown(const std::filesystem::path& directory, const TensorFiles& files,
                    const ModelConfig& config, const ParameterLayout& layout) {
  std::set<std::string_view> known;
  for (const ParameterInfo& info : layout.entries()) known.insert(info.name);
  for (const auto& [name, file] : files.places()) {
    if (known.contains(name) || is_ignored(config, name)) continue;
    throw UserError(
        "{}: tensor '{}' is unknown to a {} of this config ({} layers{}); leaving it out would "
        "change the numbers",
        (directory / file).string(), name, config.architecture, config.num_layers,
        config.tie_embeddings ? ", tied embeddings" : "");
  }
}

// Where the file has a tensor: tied embeddings may be there under the name of the head alone.
std::string name_in_file(const TensorFiles& files, const ModelConfig& config,
                         const std::string& name) {
  const bool as_head = config.tie_embeddings && name == kEmbeddingName &&
                       !files.places().contains(name) && files.places().contains(kHeadName);
  return as_head ? std::string(kHeadName) : name;
}

// Whether the files lack the parameter because the model was never trained with it: it is 0 then.
bool is_zero_without(const TensorFiles& files, const ParameterInfo& info) {
  return info.kind == ParameterKind::kChoice && !files.places().contains(info.name);
}

// The values of a tensor that a model has, in order.
class TensorReader {
 public:
  // Shape and dtype are checked here, before a value is converted; a missing tensor is an error of
  // find().
  TensorReader(TensorFiles& files, const ModelConfig& config, const ParameterInfo& info)
      : name_(info.name) {
    if (is_zero_without(files, info)) return;
    const auto [path, view] = files.find(name_in_file(files, config, info.name));
    if (view->shape != info.shape) {
      throw UserError("{}: tensor '{}' has the shape [{}]; the config asks for [{}]", path,
                      info.name, fmt::join(view->shape, ", "), fmt::join(info.shape, ", "));
    }
    if (view->dtype != Dtype::kF32 && view->dtype != Dtype::kF16 && view->dtype != Dtype::kBF16) {
      throw UserError("{}: tensor '{}' is not of a floating dtype; accepted are F32, F16 and BF16",
                      path, info.name);
    }
    path_ = path;
    view_ = view;
  }

  void read(std::span<float> values) {
    const int64_t first = std::exchange(read_, read_ + std::ssize(values));
    if (view_ == nullptr) {
      std::ranges::fill(values, 0.0f);
      return;
    }
    const auto bytes = static_cast<size_t>(size_of(view_->dtype));
    to_float(
        {.dtype = view_->dtype,
         .shape = {std::ssize(values)},
         .data = view_->data.subspan(static_cast<size_t>(first) * bytes, values.size() * bytes)},
        values);
    // A NaN would show as a policy that samples nonsense; here it has a tensor and an element.
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) {
        throw UserError("{}: tensor '{}' is {} at element {}; these weights cannot be used", path_,
                        name_, values[i], first + static_cast<int64_t>(i));
      }
    }
  }

  void release() const {
    if (view_ != nullptr) release_pages(*view_);
  }

 private:
  std::string name_, path_;
  const TensorView* view_ = nullptr;  // null: zeros
  int64_t read_ = 0;
};

}  // namespace

void load_parameters(const std::filesystem::path& directory, const ModelConfig& config,
                     Parameters& parameters, const std::string& file) {
  // A folder whose model is in bfloat16 may hold the float32 weights beside it. A run that goes on
  // takes those: the rounded ones have lost the small changes of the updates.
  const bool is_rounded = file.empty() && std::filesystem::exists(directory / kMasterFile);
  TensorFiles files(directory, is_rounded ? kMasterFile : file);
  // Before gigabytes are converted.
  refuse_unknown(directory, files, config, parameters.layout());
  const ParameterLayout& layout = parameters.layout();
  Progress progress("loading " + directory.string(), layout.num_parameters() * 4);
  for (const ParameterInfo& info : layout.entries()) {
    TensorReader reader(files, config, info);
    reader.read(parameters.vector(info.name));
    // Pages of the mapped file count as memory of the process until they are given back.
    reader.release();
    progress.add(info.size * 4);
  }
}

void check_headers(const std::filesystem::path& directory, const ModelConfig& config) {
  const ParameterLayout layout(config);
  TensorFiles files(directory);
  refuse_unknown(directory, files, config, layout);
  for (const ParameterInfo& info : layout.entries()) TensorReader(files, config, info);
}

void check_parameters(const std::filesystem::path& directory, const ModelConfig& config) {
  const ParameterLayout layout(config);
  TensorFiles files(directory);
  refuse_unknown(directory, files, config, layout);
  // In pieces: a check needs no memory for a whole model, nor for its largest tensor.
  std::vector<float> values(size_t{1} << 18);
  Progress progress("checking " + directory.string(), layout.num_parameters() * 4);
  for (const ParameterInfo& info : layout.entries()) {
    TensorReader reader(files, config, info);
    for (int64_t left = info.size; left > 0;) {
      const auto piece =
          std::span(values).first(static_cast<size_t>(std::min<int64_t>(left, std::ssize(values))));
      reader.read(piece);
      left -= std::ssize(piece);
      progress.add(std::ssize(piece) * 4);
    }
  }
}

struct StreamedParameters::Files {
  struct Kept {
    std::string name = {};
    std::vector<float> values = {};
  };

  Files(const std::filesystem::path& directory, const ModelConfig& model)
      : config(model),
        layout(model),
        files(directory),
        progress("loading " + directory.string(), layout.num_parameters() * 4) {
    refuse_unknown(directory, files, config, layout);
  }

  ModelConfig config;
  ParameterLayout layout;
  TensorFiles files;
  Progress progress;
  std::array<Kept, kKept> kept = {};
  size_t next = 0;  // of the kept ones, that the next takes the place of
};

StreamedParameters::StreamedParameters(const std::filesystem::path& directory,
                                       const ModelConfig& config)
    : files_(std::make_unique<Files>(directory, config)) {}

StreamedParameters::~StreamedParameters() = default;

std::span<const float> StreamedParameters::read(std::string_view name) {
  const auto known = std::ranges::find(files_->kept, name, &Files::Kept::name);
  if (known != files_->kept.end()) return known->values;
  Files::Kept& place = files_->kept[files_->next];
  files_->next = (files_->next + 1) % kKept;
  const ParameterInfo& info = files_->layout.at(name);
  place.name.clear();  // until all of it is there
  place.values.resize(static_cast<size_t>(info.size));
  TensorReader reader(files_->files, files_->config, info);
  constexpr size_t kPiece = size_t{1} << 22;
  for (size_t first = 0; first < place.values.size(); first += kPiece) {
    reader.read(
        std::span(place.values).subspan(first, std::min(kPiece, place.values.size() - first)));
    reader.release();
  }
  files_->progress.add(info.size * 4);
  place.name = info.name;
  return place.values;
}

namespace {

void write_text(const std::filesystem::path& path, const std::string& text) {
  if (const auto written = write_file_atomic(path, text); !written)
    throw UserError("{}", written.failure().message);
}

void write_tensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  write_safetensors(path, tensors, {{"format", "pt"}});
}

void write_config(const std::filesystem::path& directory, const ModelConfig& config,
                  const ModelForm& form, const WrittenModel& model) {
  if (form.config.empty()) {
    ModelConfig written = config;
    // Tensors are written as float32 or bfloat16 where no form asks for more, so the config must
    // not say float16.
    if (written.dtype != Dtype::kBF16) written.dtype = Dtype::kF32;
    write_model_config(written, directory);
    return;
  }
  const bool is_bf16 = config.dtype == Dtype::kBF16;
  const bool changes = !form.keeps_dtypes || model.is_narrowed;
  write_text(directory / "config.json",
             changes ? with_dtype(form.config, is_bf16 ? "bfloat16" : "float32") : form.config);
  if (!form.generation.empty()) write_text(directory / "generation_config.json", form.generation);
}

void write_index(const std::filesystem::path& directory, std::span<const WrittenFile> files,
                 const std::string& metadata) {
  nlohmann::ordered_json index = {
      {"metadata", parse_ordered_json(metadata.empty() ? "{}" : metadata)},
      {"weight_map", nlohmann::ordered_json::object()}};
  int64_t total = 0;
  for (const auto& [name, tensors] : files) {
    for (const NamedTensor& tensor : tensors) {
      index["weight_map"][tensor.name] = name;
      total += written_bytes(tensor);
    }
  }
  index["metadata"]["total_size"] = total;
  write_text(directory / TensorFiles::kIndexFile, json_text(index, 2) + "\n");
}

}  // namespace

bool save_model(const std::filesystem::path& directory, const ModelConfig& config,
                const Parameters& parameters, const ModelForm& form) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UserError("{}: cannot make the folder: {}", directory.string(), error.message());
  const WrittenModel model = written_model(config, parameters, form);
  // First, so that where the weights are, their config is too.
  write_config(directory, config, form, model);
  for (const auto& [name, tensors] : model.files) write_tensors(directory / name, tensors);
  if (model.is_indexed) write_index(directory, model.files, form.index);
  return model.is_exact();
}

void save_parameters(const std::filesystem::path& path, const Parameters& parameters,
                     std::map<std::string, std::string> metadata) {
  std::vector<NamedTensor> tensors;
  for (const ParameterInfo& info : parameters.layout().entries())
    tensors.push_back(tensor_of(parameters, info, info.name, Dtype::kF32));
  // transformers refuses a file whose metadata names no format.
  metadata["format"] = "pt";
  write_safetensors(path, tensors, metadata);
}

}  // namespace tailrace
