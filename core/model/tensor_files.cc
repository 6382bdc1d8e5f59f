#include "core/model/tensor_files.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/model/model_folder.h"

namespace tailrace {
namespace {

constexpr int64_t kMaxIndexBytes = 1 << 28;
constexpr std::string_view kOtherCheckpoint =
    "The files are of different checkpoints: download all of them, and the index, again.";

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
  return join_texts(names, ", ");
}

}  // namespace

bool TensorFiles::exist(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / kSingleFile) ||
         std::filesystem::exists(directory / kIndexFile);
}

TensorFiles::TensorFiles(const std::filesystem::path& directory, const std::string& only)
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
        "weights. The folder has {}.{}",
        directory.string(), kSingleFile, kIndexFile, listing(directory), folder_hint(directory));
  }
}

int64_t TensorFiles::shard_bytes() const {
  if (list_.filename() != kIndexFile) return 0;
  uintmax_t largest = 0;
  std::set<std::string_view> seen;
  for (const auto& [name, file] : places_) {
    if (!seen.insert(file).second) continue;
    std::error_code missing;  // said by who reads it
    const uintmax_t size = std::filesystem::file_size(directory_ / file, missing);
    if (!missing) largest = std::max(largest, size);
  }
  return static_cast<int64_t>(largest);
}

std::pair<std::string, const TensorView*> TensorFiles::find(const std::string& name) {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    std::vector<std::string> names;
    for (const auto& [known, file] : places_) names.push_back(known);
    throw UserError("{}: tensor '{}' is missing; the config asks for it. There are {} tensors{}",
                    list_.string(), name, names.size(), did_you_mean(name, names));
  }
  // It is there: an index was held against its files.
  const SafetensorsFile& file = open(place->second);
  return {file.path().string(), &file.tensors().at(name)};
}

// Mapped once: a shard holds hundreds of tensors.
const SafetensorsFile& TensorFiles::open(const std::string& name) {
  auto& file = files_[name];
  if (!file) file = std::make_unique<SafetensorsFile>(directory_ / name);
  return *file;
}

void TensorFiles::read_index(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_object(path, kMaxIndexBytes);
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw UserError("{}: it has no object weight_map", path.string());
  }
  for (const auto& [name, value] : json["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // A name, not a path: an index must not reach out of its folder. A NUL would end the name that
    // is opened.
    if (file.empty() || file == ".." ||
        file.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      throw UserError(
          "{}: weight_map gives '{}' the file {}; it must be a file name in the same folder",
          path.string(), name, json_text(value));
    }
    places_[name] = file;
  }
  refuse_missing(path);
  compare_with_shards();
}

// transformers reads each file whole: with a tensor in two of them its model would be one or the
// other by the order of reading.
void TensorFiles::compare_with_shards() {
  std::set<std::string> shards;
  for (const auto& [name, file] : places_) shards.insert(file);
  for (const std::string& shard : shards)
    for (const auto& [name, view] : open(shard).tensors()) compare_with_index(shard, name, view);
  for (const auto& [name, file] : places_) {
    if (open(file).tensors().contains(name)) continue;
    throw UserError("{}: tensor '{}' is missing; {} says that it is here. {}",
                    (directory_ / file).string(), name, kIndexFile, kOtherCheckpoint);
  }
}

void TensorFiles::compare_with_index(const std::string& shard, const std::string& name,
                                     const TensorView& view) {
  const std::string path = (directory_ / shard).string();
  const auto place = places_.find(name);
  if (place == places_.end()) {
    if (name.ends_with(kStoredFrequencies)) return;
    throw UserError("{}: tensor '{}' is here, and {} names it in no file. {}", path, name,
                    kIndexFile, kOtherCheckpoint);
  }
  if (place->second == shard) return;
  const auto& others = open(place->second).tensors();
  const auto other = others.find(name);
  if (other == others.end())
    throw UserError("{}: tensor '{}' is here; {} says that it is in {}, which lacks it. {}", path,
                    name, kIndexFile, place->second, kOtherCheckpoint);
  // It does not matter which of two equal tensors is read.
  const TensorView& indexed = other->second;
  if (indexed.dtype == view.dtype && indexed.shape == view.shape &&
      std::ranges::equal(indexed.data, view.data))
    return;
  throw UserError("{}: tensor '{}' is here, and in {} it is another; {} says that it is there. {}",
                  path, name, place->second, kIndexFile, kOtherCheckpoint);
}

// All of them at once: who downloads again wants the list.
void TensorFiles::refuse_missing(const std::filesystem::path& index) const {
  std::set<std::string_view> shards, missing;
  for (const auto& [name, file] : places_) {
    if (!shards.insert(file).second) continue;
    if (!std::filesystem::exists(directory_ / file)) missing.insert(file);
  }
  if (missing.empty()) return;
  throw UserError(
      "{}: the download is incomplete: {} of the {} files that it names are missing: {}.\n"
      "       Download them into the same folder.",
      index.string(), missing.size(), shards.size(),
      join_texts(std::vector(missing.begin(), missing.end()), ", "));
}

}  // namespace tailrace
