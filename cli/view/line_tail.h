// Follows a file of lines that another process appends to: metrics.jsonl, samples.jsonl.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/file_descriptor.h"

namespace tailrace {

class LineTail {
 public:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  // `last_bytes`: of what is there already, the lines within so many bytes before the end come
  // first; kAll: all of them, 0: none.
  LineTail(std::filesystem::path file, int64_t last_bytes);

  // Lines, without their newlines, that are complete and were not returned before. Lines that their
  // writer took back and wrote again come again. A file that takes the place of this one (the
  // scheduler, an editor and rsync rename over it) is followed from its start: its lines come where
  // they are new.
  std::vector<std::string> poll();

  // What is new, but for its last `bytes`, is left out, so that the next poll() is short. A line
  // that is longer stays whole.
  void skip(int64_t bytes);
  // The next poll() begins at the start of the file again.
  void restart();

  // How often lines were taken back, or another file took the place of this one.
  int64_t rewinds() const { return rewinds_; }

 private:
  bool follow();  // whether there is a file

  std::filesystem::path file_;
  FileDescriptor open_;  // keeps its inode from going to another file
  int64_t offset_ = 0, rewinds_ = 0;
  std::unordered_set<size_t> known_;  // hashes of the lines that were read, of all files
};

}  // namespace tailrace
