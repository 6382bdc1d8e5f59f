// The report of a run: one HTML file without scripts or links. From the top: whether the run is
// healthy, what it is and whether it learned, samples before and after, who waited, then curves and
// all numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/view/samples.h"
#include "core/base/result.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"

namespace tailrace {

struct ReportData {
  std::string name;
  std::vector<MetricsRow> rows;
  std::vector<Sample> samples;  // empty: none were kept
  std::vector<TimelineRow> timeline;
  std::string config;              // config.yaml
  std::string machine;             // a line; empty: not known
  std::vector<std::string> notes;  // what could not be read
};

// The style sheet of pages, for one with a frame of its own.
std::string_view page_style();

// The frame and the style of a page; `title` is plain text, `body` is HTML.
std::string framed_page(const std::string& title, const std::string& body);

// Pure: the same data give the same page.
std::string make_report_page(const ReportData& data);

// The learning curve alone, for a README: training reward and, where the run has them, evaluations.
std::string make_learning_curve(const ReportData& data);

// The rows of its timeline; none where it has no such file. What of it is damaged becomes a note.
std::vector<TimelineRow> read_timeline_of(const RunPaths& paths, std::vector<std::string>& notes);

// The files of a run directory that are there. A Failure when it has no metrics.
Result<ReportData> read_report_data(const RunPaths& paths);

// Writes RUN/report.html.
Result<void> write_report(const RunPaths& paths);

}  // namespace tailrace
