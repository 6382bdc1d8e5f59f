// One sample of a run, from its first lease to the loss: `tailrace trace`.
//
// Its history is read from timeline.jsonl, its tokens from traces/. Either may be missing; what is,
// and which rows are damaged, is a note.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/run_directory.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/sample_name.h"
#include "core/trajectory/timeline_rows.h"
#include "core/trajectory/trace_rows.h"

namespace tailrace {

struct SampleTrace {
  BodyId sample;                     // its latest attempt that is known
  std::vector<TimelineRow> history;  // its leases, and the step that trained it; as they began
  std::optional<TraceRow> tokens;
  std::vector<std::string> notes;
};

// A Failure: nothing of the run fits the query, and what would; or more than one member does.
Result<SampleTrace> find_sample(const RunPaths& paths, const SampleQuery& query);

// For people. Without a tokenizer tokens are ids alone.
std::string show_sample_trace(const SampleTrace& trace, const text::Tokenizer* tokenizer);

// One object: "sample", "history" (rows of the timeline), "tokens" (a row of traces, or null),
// "notes".
std::string sample_trace_json(const SampleTrace& trace);

}  // namespace tailrace
