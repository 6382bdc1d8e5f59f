#include "core/model/written_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/model/reward_head.h"
#include "core/model/tensor_files.h"

namespace tailrace {
namespace {

// The dtype in which products read a tensor, without a form.
Dtype sampled_dtype(const ModelConfig& config, const ParameterInfo& info) {
  // The head of a reward model is read as a vector.
  const bool is_matrix = info.shape.size() > 1 && info.name != kScoreName;
  return is_matrix && config.dtype == Dtype::kBF16 ? Dtype::kBF16 : Dtype::kF32;
}

std::vector<WrittenFile> files_by_size(const ModelConfig& config, const Parameters& parameters) {
  std::vector<WrittenFile> files(1);
  int64_t bytes = 0;
  for (const ParameterInfo& info : parameters.layout().entries()) {
    NamedTensor tensor = tensor_of(parameters, info, info.name, sampled_dtype(config, info));
    const int64_t size = written_bytes(tensor);
    // A tensor larger than the bound still gets a file, of its own.
    if (config.shard_bytes > 0 && bytes > 0 && bytes + size > config.shard_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += size;
    files.back().tensors.push_back(std::move(tensor));
  }
  return files;
}

class FilesByForm {
 public:
  FilesByForm(const ModelConfig& config, const Parameters& parameters, const ModelForm& form)
      : config_(config), parameters_(parameters), form_(form) {
    for (const ParameterInfo& info : parameters.layout().entries()) infos_[info.name] = &info;
  }

  WrittenModel model() {
    std::set<std::string_view> placed;
    for (const auto& [name, tensors] : form_.files) {
      WrittenFile file{.name = name};
      for (const ModelForm::Tensor& tensor : tensors) {
        const ParameterInfo* info = info_of(tensor.name);
        if (info == nullptr) continue;  // rotary frequencies
        placed.insert(info->name);
        file.tensors.push_back(tensor_of(parameters_, *info, tensor.name, dtype_of(tensor, *info)));
      }
      if (!file.tensors.empty()) model_.files.push_back(std::move(file));
    }
    if (model_.files.empty()) model_.files.push_back({.name = TensorFiles::kSingleFile});
    // The tensors that a run adds, such as a bias of choices.
    for (const auto& [name, info] : infos_)
      if (!placed.contains(name))
        model_.files.back().tensors.push_back(
            tensor_of(parameters_, *info, info->name, sampled_dtype(config_, *info)));
    return std::move(model_);
  }

 private:
  // Tied embeddings may be there as the head, too or alone.
  const ParameterInfo* info_of(std::string_view name) const {
    const bool is_tied_head =
        config_.tie_embeddings && name == kHeadName && !is_reward_model(config_);
    const auto found = infos_.find(is_tied_head ? kEmbeddingName : name);
    return found == infos_.end() ? nullptr : found->second;
  }

  Dtype dtype_of(const ModelForm::Tensor& tensor, const ParameterInfo& info) {
    const Dtype sampled = sampled_dtype(config_, info);
    if (!form_.keeps_dtypes) return sampled;
    // The rollout samples this tensor in bfloat16, so a float32 copy would hold another model than
    // the one that was trained.
    const bool narrows = tensor.dtype == Dtype::kF32 && sampled == Dtype::kBF16;
    if (narrows) model_.is_narrowed = true;
    return narrows ? Dtype::kBF16 : tensor.dtype;
  }

  const ModelConfig& config_;
  const Parameters& parameters_;
  const ModelForm& form_;
  std::map<std::string_view, const ParameterInfo*> infos_;
  WrittenModel model_;
};

// As transformers names them.
void name_by_number(std::vector<WrittenFile>& files) {
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
}

}  // namespace

NamedTensor tensor_of(const Parameters& parameters, const ParameterInfo& info,
                      const std::string& name, Dtype dtype) {
  return {.name = name,
          .view = {.dtype = Dtype::kF32,
                   .shape = info.shape,
                   .data = std::as_bytes(parameters.vector(info.name))},
          .written_as = dtype};
}

int64_t written_bytes(const NamedTensor& tensor) {
  return std::ssize(tensor.view.data) / size_of(tensor.view.dtype) *
         size_of(tensor.written_as.value_or(tensor.view.dtype));
}

bool WrittenModel::is_exact() const {
  return std::ranges::all_of(files, [](const WrittenFile& file) {
    return std::ranges::all_of(file.tensors, [](const NamedTensor& tensor) {
      return tensor.written_as.value_or(Dtype::kF32) == Dtype::kF32;
    });
  });
}

WrittenModel written_model(const ModelConfig& config, const Parameters& parameters,
                           const ModelForm& form) {
  WrittenModel model;
  if (form.files.empty()) {
    model.files = files_by_size(config, parameters);
    model.is_indexed = config.shard_bytes > 0;
    if (model.is_indexed) name_by_number(model.files);
  } else {
    model = FilesByForm(config, parameters, form).model();
    model.is_indexed = !form.index.empty();
    // Other names could be those of what lies beside a model.
    const bool are_usual = std::ranges::all_of(
        model.files, [](const WrittenFile& file) { return file.name.starts_with("model-"); });
    if (model.is_indexed && !are_usual) name_by_number(model.files);
  }
  if (!model.is_indexed) model.files.front().name = TensorFiles::kSingleFile;
  return model;
}

}  // namespace tailrace
