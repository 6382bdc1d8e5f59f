// Metrics of a run: one row a step in metrics.jsonl, the same as TensorBoard scalars.
//
// A row is {"step": 4, "version": 3, "time": 1712.5, "reward/mean": 0.61, ..., "proof": "9f.."}:
// `time` is seconds since the epoch (UTC); a value that is not finite is written as null and read
// back as NaN; the proof is one of the row (json_file.h). Names are those of docs/metrics.md,
// "group/name".
//
// Thread: one at a time (the scheduler's service owns the writer).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/file_descriptor.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/run/tensorboard.h"

namespace tailrace {

// Step n starts from version n - 1 and publishes version n. An evaluation of version n has step n.
struct MetricsRow {
  int64_t step = 0;     // of a supervised warm-up: updates done
  int64_t version = 0;  // that the row is about: what a step started from; -1: before the first
  double unix_seconds = 0;
  MetricList values;

  const double* find(std::string_view name) const;  // null: not in this row
};

class MetricsWriter {
 public:
  // Appends to `path` and to a new event file beside it. Rows of versions >= first_version that are
  // there already (from a launch that died after its last checkpoint) are removed first, and so is
  // a last line that a crash cut; rows of version -1 stay. `unix_seconds` names the event file.
  static Result<MetricsWriter> open(const std::filesystem::path& path, int64_t first_version,
                                    double unix_seconds);

  // A Failure (a full disk) leaves the files as they were; the caller decides whether the run goes
  // on.
  Result<void> write(const MetricsRow& row);

  // A change that others made to the file since the last write: replaced by a copy, removed, cut.
  enum class Kept {
    kWhole,    // nothing
    kPutBack,  // it was another file, or gone; all rows are under its name again
    kCut,      // bytes of it are gone for good; what is left ends with a whole line
  };
  // Before each write. After a Failure rows go where they went before, and the next call tries
  // again.
  Result<Kept> keep();

 private:
  Result<void> follow();

  std::filesystem::path path_;
  AppendFile file_;
  FileDescriptor own_;  // the same file, to read; not open: no regular file, which nobody replaces
  int64_t size_ = 0;    // bytes of it that were there or were written
  EventFile events_;
};

// All complete rows, in the order of the file. A last line without its newline is ignored (the
// writer may be in the middle of it); any other malformed line is a Failure with its number.
Result<std::vector<MetricsRow>> read_metrics(const std::filesystem::path& path);

// One line without its newline, and back.
std::string format_metrics_row(const MetricsRow& row);
Result<MetricsRow> parse_metrics_row(std::string_view line);

}  // namespace tailrace
