// How long and how stale the samples of a run were, by decile, and what was discarded, as a part of
// the report.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/trajectory/timeline_rows.h"

namespace tailrace {

// Samples that no step trained, of the time until a step was published.
struct Discards {
  std::map<std::string, int64_t> by_cause;
  std::vector<int64_t> tokens, staleness;  // of those where they are known
  int64_t samples = 0, truncated = 0;
};

struct StepLengths {
  TimelineRow::Trained trained;
  Discards discarded;
};

// By step, from 1. A step that was trained again after a rollback counts as it was the last time.
std::map<int64_t, StepLengths> lengths_of(std::span<const TimelineRow> rows);

// Empty where no step was published.
std::string lengths_section(std::span<const TimelineRow> rows);

}  // namespace tailrace
