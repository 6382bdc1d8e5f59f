// Runs side by side: what they have come to, the keys in which their configs differ, and their
// curves in one chart each.
//
// Pure: the same data give the same text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cli/view/report_page.h"

namespace tailrace {

// Runs of one comparison at most: the colours of a chart.
inline constexpr size_t kMostCompared = 4;

// A line of a table; the value of each run, empty where it has none.
struct ComparedRow {
  std::string what;
  std::vector<std::string> values;
};

// Steps, time, and for the metrics that people look for first and last values, or the best.
std::vector<ComparedRow> compare_outcomes(std::span<const ReportData> runs);
// Keys of config.yaml with another value in one of the runs. Names and places of the runs are none.
std::vector<ComparedRow> compare_configs(std::span<const ReportData> runs);

// Both tables, for a terminal.
std::string comparison_text(std::span<const ReportData> runs);
// Both with the charts above them, as one HTML file without scripts or links.
std::string comparison_page(std::span<const ReportData> runs);

}  // namespace tailrace
