// The workers of a run over time, and what they waited for, as a part of the report.
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include "core/trajectory/timeline_rows.h"

namespace tailrace {

// The chart of the whole run, one of its last steps, and the shares as a table. Empty where no
// worker is known.
std::string worker_section(std::span<const TimelineRow> rows);

// Colours of the section, for the page's style: light, and for a dark page.
extern const std::string_view kWorkerStyle;

}  // namespace tailrace
