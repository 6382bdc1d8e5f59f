// A file that appears whole or not at all: written under a temporary name, fsynced, renamed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace tailrace {

// Throws UserError with the path and the system's reason (a full disk, no permission) from any call;
// the temporary file is removed when the object dies without commit().
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // fsync, close, rename, fsync of the folder; nothing may be written after it

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

}  // namespace tailrace
