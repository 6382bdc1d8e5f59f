// A file as memory, to be read.
//
// Pages come from the page cache as they are read. A file that somebody shortens while it is mapped
// kills the process (SIGBUS); those that Tailrace writes are replaced by rename, never in place.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/result.h"

namespace tailrace {

class MappedFile {
 public:
  // Fails with the path and the system's reason. An empty file has no bytes.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // While it lives; not moved when it is.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace tailrace
