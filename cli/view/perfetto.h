// The timeline of a run as a trace that ui.perfetto.dev and chrome://tracing open: the JSON of the
// Trace Event Format (traceEvents of phases X, M and i; ts and dur in microseconds).
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include "core/trajectory/timeline_rows.h"

namespace tailrace {

// A process a worker, a thread a slot: a lease is in the lowest slot that was free at its begin.
std::string make_perfetto_trace(std::string_view run, std::span<const TimelineRow> rows);

}  // namespace tailrace
