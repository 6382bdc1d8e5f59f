#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/status/run_state.h"
#include "cli/view/comparison.h"
#include "cli/view/perfetto.h"
#include "cli/view/report_page.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/flags.h"

namespace tailrace {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string svg, title, perfetto, html;
};

// A file of the run itself is not for a report: a run is continued from it.
std::filesystem::path target_of(const std::string& file, const RunPaths& paths) {
  const std::filesystem::path target = file;
  std::error_code ignored;
  const bool is_inside = std::filesystem::equivalent(
      target.has_parent_path() ? target.parent_path() : ".", paths.root, ignored);
  if (is_inside && target.filename() != paths.report().filename() &&
      std::filesystem::exists(target, ignored))
    throw UserError("{} is a file of the run.\n       Try another name.", target.string());
  return target;
}

// Reads the timeline alone: a run may be under way, before its first row of metrics.
void write_perfetto(const RunPaths& paths, const std::string& file) {
  if (!std::filesystem::exists(paths.timeline()))
    throw UserError(
        "{} has no timeline.jsonl: 'tailrace launch' writes one unless scheduler.timeline_rows=0.",
        paths.root.string());
  std::vector<std::string> notes;
  const std::vector<TimelineRow> rows = read_timeline_of(paths, notes);
  add_note_of_journal(paths, notes);
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  const std::filesystem::path target = target_of(file, paths);
  if (auto written = write_file_atomic(target, make_perfetto_trace(paths.root.string(), rows));
      !written)
    throw UserError("{}", written.failure().message);
  fmt::print("{}\n", file);
}

ReportData data_of(const RunPaths& paths) {
  auto data = read_report_data(paths);
  if (!data)
    throw UserError("{}. A run directory holds metrics.jsonl; 'tailrace launch' makes one.",
                    data.failure().message);
  add_note_of_journal(paths, data.value().notes);
  // Not on stdout, which holds the path of the page alone.
  for (const std::string& note : data.value().notes) fmt::print(stderr, "note: {}\n", note);
  return std::move(data).value();
}

void compare(const ReportArguments& arguments) {
  if (arguments.runs.size() > kMostCompared)
    throw UserError("{} runs: at most {} are compared.", arguments.runs.size(), kMostCompared);
  for (const auto& [flag, value] : {std::pair("--svg", arguments.svg),
                                    {"--perfetto", arguments.perfetto},
                                    {"--title", arguments.title}})
    if (!value.empty())
      throw UserError("{} is of one run, and {} are named.", flag, arguments.runs.size());
  std::vector<ReportData> all;
  for (const std::string& run : arguments.runs) all.push_back(data_of(RunPaths{run}));
  // Runs of several folders may have one name.
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (all[i].name == all[j].name) all[i].name = arguments.runs[i];
  if (arguments.html.empty()) {
    fmt::print("{}", comparison_text(all));
    return;
  }
  const std::filesystem::path target = target_of(arguments.html, RunPaths{arguments.runs.front()});
  if (auto written = write_file_atomic(target, comparison_page(all)); !written)
    throw UserError("{}", written.failure().message);
  fmt::print("{}\n", target.string());
}

void report(const ReportArguments& arguments) {
  if (arguments.runs.size() > 1) return compare(arguments);
  if (!arguments.html.empty())
    throw UserError("--html is of several runs; the page of one is RUN/report.html.");
  RunPaths paths{arguments.runs.front()};
  if (!arguments.perfetto.empty()) return write_perfetto(paths, arguments.perfetto);
  ReportData data = data_of(paths);
  if (!arguments.title.empty()) data.name = arguments.title;
  std::filesystem::path target =
      arguments.svg.empty() ? paths.report() : target_of(arguments.svg, paths);
  auto written = write_file_atomic(
      target, arguments.svg.empty() ? make_report_page(data) : make_learning_curve(data));
  if (!written) throw UserError("{}", written.failure().message);
  fmt::print("{}\n", target.string());
}

}  // namespace

void add_report(Command& program) {
  auto arguments = std::make_shared<ReportArguments>();
  Command& command =
      program.command("report",
                      "Curves, samples and settings of a run as one HTML file; of several "
                      "runs what they came to, side by side");
  command.option("runs", arguments->runs,
                 {.help = "run directories", .value = "RUN", .required = true});
  command.option("--svg", arguments->svg,
                 {.help = "write the learning curve to this file instead", .value = "FILE"});
  command.option(
      "--perfetto", arguments->perfetto,
      {.help = "write what each worker did when to this file instead, for ui.perfetto.dev",
       .value = "FILE",
       .excludes = {"--svg"}});
  command.option("--html", arguments->html,
                 {.help = "of several runs: write the comparison, with their curves, to this file",
                  .value = "FILE"});
  command.option("--title", arguments->title, {.help = "instead of the directory's name"});
  command.footer(
      "Writes RUN/report.html and prints its path; of several runs it prints a table.\n\n"
      "Example:\n  tailrace report runs/quickstart\n"
      "  tailrace report runs/a runs/b --html compared.html\n"
      "  tailrace report runs/quickstart --perfetto trace.json    # open it in ui.perfetto.dev");
  command.action([arguments] {
    report(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
