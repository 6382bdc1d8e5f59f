// The safetensors file format: an 8-byte little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}}, raw little-endian data.
//
// Files come from outside: every offset, shape and length is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/mapped_file.h"
#include "kernels/base/dtype.h"

namespace tailrace {

std::string_view name_of(Dtype dtype);  // "F32", "BF16": as the format calls it

struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  int64_t num_elements() const;
};

// A memory-mapped file; views stay valid while it lives.
class SafetensorsFile {
 public:
  // Throws UserError (file, tensor, what is wrong) for anything malformed or cut.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The pages of a view leave the memory of this process until they are read again: for who reads a
// file once, which else would be in memory beside what is made of it.
void release_pages(const TensorView& view);

// Converts F32, F16 or BF16 to float exactly. out.size() must be view.num_elements().
void to_float(const TensorView& view, std::span<float> out);

// A file whose tensors are written one behind the other, in pieces of any size, and which appears
// whole or not at all. All throw UserError with the path and the system's reason (a full disk), and
// leave no partial file.
struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};
class SafetensorsWriter {
 public:
  using Entry = SafetensorsEntry;
  // `durable`: as AtomicFile.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const Entry> tensors,
                    const std::map<std::string, std::string>& metadata = {}, bool durable = true);
  void write(std::span<const std::byte> bytes);
  void commit();  // TR_CHECKs that all bytes were written
  // The bytes in front of the data, their length included.
  static std::string header(std::span<const Entry> tensors,
                            const std::map<std::string, std::string>& metadata);

 private:
  AtomicFile file_;
  uint64_t missing_ = 0;  // bytes of data
};

struct NamedTensor {
  std::string name;
  TensorView view;
  // kBF16, kF16: a view of floats is rounded as it is written, to the nearest, ties to even.
  std::optional<Dtype> written_as = {};
};
// Tensors in the given order; written to a temporary file, fsynced and renamed. Throws UserError
// with the path and the system's reason (a full disk), or with a tensor that float16 does not hold,
// and leaves no partial file.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tailrace
