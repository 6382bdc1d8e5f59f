#include "core/model/model_form.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/model/tensor_files.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) throw UserError("{}", text.failure().message);
  return text.value();
}

std::vector<ModelForm::File> files_of(const fs::path& directory) {
  TensorFiles files(directory);
  struct Found {
    const std::byte* begin;
    ModelForm::Tensor tensor;
  };
  std::map<std::string, std::vector<Found>> found;
  for (const auto& [name, file] : files.places()) {
    const TensorView& view = *files.find(name).second;
    found[file].push_back({view.data.data(), {name, view.dtype}});
  }
  std::vector<ModelForm::File> all;
  for (auto& [name, tensors] : found) {
    // Views of one file are in one mapping.
    std::ranges::stable_sort(tensors, std::less<>(), &Found::begin);
    ModelForm::File& file = all.emplace_back(ModelForm::File{.name = name});
    for (Found& each : tensors) file.tensors.push_back(std::move(each.tensor));
  }
  return all;
}

}  // namespace

ModelForm read_model_form(const fs::path& directory) {
  ModelForm form;
  form.config = text_of(directory / "config.json");
  const fs::path generation = directory / "generation_config.json";
  if (fs::exists(generation)) form.generation = text_of(generation);
  if (!TensorFiles::exist(directory)) return form;
  form.files = files_of(directory);
  // TensorFiles takes the single file first, so an index beside it is not the form of this model.
  if (!fs::exists(directory / TensorFiles::kSingleFile)) {
    const auto index = parse_ordered_json(text_of(directory / TensorFiles::kIndexFile));
    const auto metadata = index.find("metadata");
    form.index = metadata != index.end() && metadata->is_object() ? json_text(*metadata) : "{}";
  }
  return form;
}

}  // namespace tailrace
