// Follows RUN/metrics.jsonl while the scheduler writes it.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/view/line_tail.h"
#include "core/run/metrics.h"

namespace tailrace {

class MetricsTail {
 public:
  // `from_start`: rows that are there already come first; otherwise only new ones do.
  MetricsTail(std::filesystem::path file, bool from_start)
      : lines_(std::move(file), from_start ? LineTail::kAll : 0) {}

  // Rows that are complete and were not returned before; those that a restarted scheduler took back
  // and wrote again come again (LineTail::poll).
  std::vector<MetricsRow> poll();

  // Lines that poll() has left out since the start, as they are no rows.
  int64_t damaged() const { return damaged_; }

  int64_t rewinds() const { return lines_.rewinds(); }
  void restart() {
    lines_.restart();
    damaged_ = 0;
  }

 private:
  LineTail lines_;
  int64_t damaged_ = 0;
};

}  // namespace tailrace
