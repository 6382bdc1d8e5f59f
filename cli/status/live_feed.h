// The events that a page which watches a run is told, each a name and one line of JSON, made of the
// rows that the run writes anyway. Nothing of the run is asked: it does not notice.
//
//   rows     {"reset": true, "rows": [...]}    lines of metrics.jsonl; reset: in the place of those
//                                              before
//   samples  {"reset": true, "samples": [...]} as they come, oldest first: {"step": 3, "name":
//   "...",
//            "reward": 1, "segments": [{"note": "", "text": [{"role": "sampled", "text": "..."}]}]}
//   status   what `tailrace status --json` prints
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/status/kept_rows.h"
#include "cli/status/row_facts.h"
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
  // The samples that a page which begins is shown, and the most that it is sent at once.
  static constexpr size_t kMostSamples = 32;
  // The bytes of the rows that a page is sent at once (KeptRows).
  static constexpr size_t kMostRowBytes = 2 << 20;

  // `run`: its directory as a person names it. Throws UserError where it has no journal.
  explicit LiveFeed(std::string run);

  // What has changed since the last call, for a page that has all before; without `samples` none of
  // those. Whether the run lives is asked once a second. The journal is read at most as often, and
  // so seldom that a hundredth of the time of one core goes into it, but each 20 s.
  std::vector<LiveEvent> poll(Time now, bool samples);
  // A page that begins now needs these; poll() tells the rest as it comes.
  std::vector<LiveEvent> whole() const;

  const RunStatus& status() const { return status_; }  // as of the last look
  // The newest value of each metric.
  const std::map<std::string, double>& newest() const { return facts_.newest(); }

 private:
  struct Shown {
    int64_t version = 0;
    std::string json;
  };
  void look_at_rows(std::vector<LiveEvent>& events);
  void look_at_samples(Time now, std::vector<LiveEvent>& events);
  void look_at_status(Time now, std::vector<LiveEvent>& events);
  void read_journal(Time now);
  bool has_tokenizer(Time now);

  std::string run_;
  RunPaths paths_;
  MetricsTail metrics_;
  LineTail samples_;
  std::unique_ptr<text::Tokenizer> tokenizer_;  // null: there is none yet
  std::optional<Time> next_tokenizer_;          // when it is tried again
  KeptRows kept_;
  RowFacts facts_;
  int64_t version_ = -1;             // of the newest row
  std::deque<Shown> shown_samples_;  // the last ones
  RunStatus status_;
  std::string status_compared_;                  // as it was sent, but for a short silence
  std::optional<Time> next_look_, next_status_;  // at whether it lives, at the journal
};

}  // namespace tailrace
