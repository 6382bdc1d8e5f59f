// The numbers of a run over its steps, for the report.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/run/metrics.h"

namespace tailrace {

using Points = std::vector<std::pair<double, double>>;  // step (of the warm-up: update) and value

Points series_of(std::span<const MetricsRow> rows, std::string_view name);

// The metrics that are worth reading first, in that order.
std::span<const std::string_view> known_metrics();

// Curves of those that change, first those that matter most; the rest are folded.
std::string curves_section(std::span<const MetricsRow> rows);

// The values of all, folded: first, last, lowest and highest of those that change; of those that
// stay constant over the run, the one that they have.
std::string metrics_tables(std::span<const MetricsRow> rows);

}  // namespace tailrace
