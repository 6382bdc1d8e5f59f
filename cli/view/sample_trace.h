// One sample of a run, from its first lease to the loss: `tailrace status --sample`.
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
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/sample_name.h"
#include "core/trajectory/timeline_rows.h"
#include "core/trajectory/trace_rows.h"

namespace tailrace {

struct SampleTrace {
  BodyId sample;                     // its latest attempt that is known
  std::vector<TimelineRow> history;  // its leases, and the step that trained it; as they began
  std::optional<TraceRow> tokens;
  // For each turn in order: how many members of its group met the state that the turn answers,
  // itself among them; 0: no state is known. Of the members that are in traces/, group_members.
  std::vector<int64_t> met;
  int64_t group_members = 0;
  std::string judged = "rewards";  // what gives a group a signal (judged_values())
  std::vector<std::string> notes;
};

// A Failure: nothing of the run fits the query, and what would; or more than one member does.
Result<SampleTrace> find_sample(const RunPaths& paths, const SampleQuery& query);

// For people. Without a tokenizer tokens are ids alone.
std::string show_sample_trace(const SampleTrace& trace, const text::Tokenizer* tokenizer);

// One object: "sample", "history" (rows of the timeline), "tokens" (a row of traces, or null),
// "met", "group_members", "notes".
std::string sample_trace_json(const SampleTrace& trace);

}  // namespace tailrace
