// Which rows metrics.jsonl must have and has not: a full disk, a kill, or somebody who cut it.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/run/metrics.h"
#include "core/run/run_directory.h"

namespace tailrace {

struct ExpectedRows {
  bool is_over = false;        // the run is complete; else what was under way last may still come
  int64_t published = 0;       // this version at least: its steps have their rows
  bool warm_up = false;        // there was one
  bool evaluates = false;      // as the config asks now
  int64_t interval_steps = 0;  // from one evaluation to the next; 0: only the first and the last
};

// "2 steps from 3 to 7", one text for each kind of rows; none where nothing is known to be missing.
// How many updates a warm-up has is known from any of its rows.
std::vector<std::string> missing_rows(std::span<const MetricsRow> rows, ExpectedRows expected);

// The warning for the run in this directory, whose checkpoints tell how far it is: a line for a
// person, empty where nothing is missing.
std::string warning_of_missing_rows(const RunPaths& paths, ExpectedRows expected);

}  // namespace tailrace
