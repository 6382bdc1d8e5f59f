// The tensors of a Hugging Face folder, whether in one file or in shards.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/model/safetensors.h"

namespace tailrace {

// Ends the name of a tensor that follows from the config: old Llama files have it.
inline constexpr std::string_view kStoredFrequencies = "rotary_emb.inv_freq";

// Thread: one at a time; views stay valid while it lives.
class TensorFiles {
 public:
  static constexpr const char* kSingleFile = "model.safetensors";
  static constexpr const char* kIndexFile = "model.safetensors.index.json";
  // Whether a folder has weights at all.
  static bool exist(const std::filesystem::path& directory);

  // `only`: the file that is read; empty: the usual ones, the single one first. Throws UserError,
  // here and below, with file and tensor: so where the index and its files do not say the same of a
  // tensor. Files that hold a tensor more than once are read where all of them hold the same.
  explicit TensorFiles(const std::filesystem::path& directory, const std::string& only = "");

  // The file of each tensor, by name.
  const std::map<std::string, std::string, std::less<>>& places() const { return places_; }
  // The size of the largest file, where an index names them; 0: there is one file.
  int64_t shard_bytes() const;
  // The path of a tensor's file, and its view.
  std::pair<std::string, const TensorView*> find(const std::string& name);

 private:
  const SafetensorsFile& open(const std::string& name);
  void read_index(const std::filesystem::path& path);
  void refuse_missing(const std::filesystem::path& index) const;
  void compare_with_shards();
  void compare_with_index(const std::string& shard, const std::string& name,
                          const TensorView& view);

  std::filesystem::path directory_;
  std::filesystem::path list_;  // the file that says which tensors there are
  std::map<std::string, std::string, std::less<>> places_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace tailrace
