// Follows the log of a role from where it ends now.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
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

// A line of the log `name` as the launch shows it, if it is for a person: what a role has passed
// over, and how many programs have started.
std::optional<std::string> note_of(std::string_view name, std::string_view line);

}  // namespace tailrace
