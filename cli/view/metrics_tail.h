// Follows RUN/metrics.jsonl while the scheduler writes it.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/metrics.h"

namespace tailrace {

class MetricsTail {
 public:
  // `from_start`: rows that are there already come first; otherwise only new ones do.
  MetricsTail(std::filesystem::path file, bool from_start);

  // Rows that are complete and were not returned before. Rows that a restarted scheduler took back
  // and wrote again come again.
  std::vector<MetricsRow> poll();

 private:
  std::filesystem::path file_;
  int64_t offset_ = 0;
};

}  // namespace tailrace
