// An exclusive hold on a file, among processes and among holders in one process. It is the kernel's
// (flock): it goes with the process however that ends, and programs that it starts do not inherit
// it.
//
// Thread: one at a time.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/file_descriptor.h"

namespace tailrace {

class LockFile {
 public:
  // Creates the file if need be. Throws UserError when the system refuses, but not when somebody
  // else holds it.
  explicit LockFile(const std::filesystem::path& path);

  bool held() const { return held_; }
  // Whoever holds it instead: "4711", or "unknown" in the moment before it has said so.
  const std::string& holder() const { return holder_; }

 private:
  // The file stays when this dies: removing it would let two lock two files of one name.
  FileDescriptor descriptor_;
  bool held_ = false;
  std::string holder_;
};

}  // namespace tailrace
