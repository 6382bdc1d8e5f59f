// The GGUF file format of llama.cpp, versions 2 and 3, little-endian: metadata (key, type, value),
// a list of tensors (name, sizes, type, offset), then their data.
//
// Files come from outside: every count, length and offset is checked before use. Memory is taken
// only for what the file has bytes for: numbers of arrays and keys take up to about ten times
// theirs, so all in front of the data may have at most kMaxGgufHeadBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/mapped_file.h"
#include "core/gguf/blocks.h"

namespace tailrace {

// Vocabularies of released models have less than 20 MiB.
constexpr size_t kMaxGgufHeadBytes = size_t{128} << 20;

// An array of metadata: numbers of one kind or texts. Texts are views into the file.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<bool>,
                               std::vector<std::string_view>>;
// A number without a sign above 2^63 is refused.
using GgufValue = std::variant<int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape = {};  // rows first, as in safetensors
  std::span<const std::byte> data = {};
  int64_t num_elements() const;
  int64_t row_size() const { return shape.empty() ? 1 : shape.back(); }
};

// A memory-mapped file; views stay valid while it lives. All of it throws UserError (file, key or
// tensor, what is wrong).
//
// Thread: any (immutable).
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  // A value that must be there, or its fallback; of another kind it is refused.
  std::string_view text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t fallback) const;
  // Finite, and within what float32 holds.
  double number(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  const GgufValue* find(std::string_view key) const;  // null: none
  // An array of these elements; null: none.
  template <class T>
  const std::vector<T>* array(const std::string& key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return nullptr;
    const auto* values = std::get_if<GgufArray>(value);
    const auto* array = values == nullptr ? nullptr : std::get_if<std::vector<T>>(values);
    if (array == nullptr) refuse_kind(key, "an array of its kind");
    return array;
  }

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void refuse_kind(const std::string& key, std::string_view wanted) const;
  template <class T>
  std::optional<T> value_of(const std::string& key, std::string_view wanted) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

}  // namespace tailrace
