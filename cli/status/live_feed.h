// What a page that watches a run is told: events, each a name and one line of JSON, made of the
// rows that the run writes anyway. Nothing of the run is asked: it does not notice.
//
//   rows     {"reset": true, "rows": [...]}    lines of metrics.jsonl; reset: instead of those
//                                              before
//   samples  [{"step": 3, "name": "...", "reward": 1, "segments": [{"note": "", "text":
//            [{"role": "sampled", "text": "..."}]}]}]    as they come, oldest first
//   status   what `tailrace status --json` prints
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/status/status_facts.h"
#include "cli/view/line_tail.h"
#include "cli/view/metrics_tail.h"
#include "core/base/time.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"

namespace tailrace {

struct LiveEvent {
  std::string_view name;
  std::string data;
};

class LiveFeed {
 public:
  // At most so many rows and samples are sent to a page that begins; rows in between are left out.
  static constexpr size_t kMostRows = 1000, kMostSamples = 32;

  // `run`: its directory as a person names it. Throws UserError where it has no journal.
  explicit LiveFeed(std::string run);

  // What has changed since the last call, for a page that has all before. The journal is read at
  // most once a second, and so seldom that a hundredth of the time goes into it.
  std::vector<LiveEvent> poll(Time now);
  // What a page needs that begins now; poll() tells what comes behind it.
  std::vector<LiveEvent> whole() const;

  const RunStatus& status() const { return status_; }  // as of the last look
  std::span<const MetricsRow> rows() const { return rows_; }

 private:
  bool look_at_rows();
  std::vector<std::string> new_samples();
  bool look_at_status(Time now);

  std::string run_;
  RunPaths paths_;
  MetricsTail metrics_;
  LineTail samples_;
  std::unique_ptr<text::Tokenizer> tokenizer_;  // null: there is none yet
  std::vector<MetricsRow> rows_;
  std::deque<std::string> shown_samples_;  // the last ones, as JSON
  RunStatus status_;
  std::string status_json_;
  std::optional<Time> next_status_;
};

// Each k-th row, the smallest k that leaves about `most`; besides the last one, and evaluations as
// long as they are few.
std::vector<const MetricsRow*> thinned(std::span<const MetricsRow> rows, size_t most);

}  // namespace tailrace
