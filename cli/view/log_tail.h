// Follows the log of a role from where it ends now.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tailrace {

class LogTail {
 public:
  explicit LogTail(std::filesystem::path file);

  // Lines that are whole and were not returned before. Of a file that was cut or replaced by a
  // shorter one: all of its lines. A part of a line that is longer than a poll reads is left out.
  std::vector<std::string> poll();

 private:
  std::filesystem::path file_;
  int64_t offset_ = 0;
};

}  // namespace tailrace
