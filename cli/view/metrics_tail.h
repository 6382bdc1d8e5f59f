// Follows RUN/metrics.jsonl while the scheduler writes it.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/run/metrics.h"

namespace tailrace {

class MetricsTail {
 public:
  // `from_start`: rows that are there already come first; otherwise only new ones do.
  MetricsTail(std::filesystem::path file, bool from_start);

  // Rows that are complete and were not returned before. Rows that a restarted scheduler took back
  // and wrote again come again. A file that takes the place of this one (the scheduler, an editor
  // and rsync rename over it) is followed from its start: its rows come where they are new.
  std::vector<MetricsRow> poll();

 private:
  bool follow();  // whether there is a file

  std::filesystem::path file_;
  FileDescriptor open_;  // keeps its inode from going to another file
  int64_t offset_ = 0;
  std::unordered_set<size_t> known_;  // hashes of the lines that were read, of all files
};

}  // namespace tailrace
