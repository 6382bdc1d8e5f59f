#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/run_state.h"
#include "cli/view/perfetto.h"
#include "cli/view/report_page.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/flags.h"

namespace tailrace {
namespace {

struct ReportArguments {
  std::string run, svg, title, perfetto;
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

void report(const ReportArguments& arguments) {
  RunPaths paths{arguments.run};
  if (!arguments.perfetto.empty()) return write_perfetto(paths, arguments.perfetto);
  auto data = read_report_data(paths);
  if (!data)
    throw UserError("{}. A run directory holds metrics.jsonl; 'tailrace launch' makes one.",
                    data.failure().message);
  if (!arguments.title.empty()) data.value().name = arguments.title;
  add_note_of_journal(paths, data.value().notes);
  // Not on stdout, which holds the path of the page alone.
  for (const std::string& note : data.value().notes) fmt::print(stderr, "note: {}\n", note);
  std::filesystem::path target =
      arguments.svg.empty() ? paths.report() : target_of(arguments.svg, paths);
  auto written =
      write_file_atomic(target, arguments.svg.empty() ? make_report_page(data.value())
                                                      : make_learning_curve(data.value()));
  if (!written) throw UserError("{}", written.failure().message);
  fmt::print("{}\n", target.string());
}

}  // namespace

void add_report(Command& program) {
  auto arguments = std::make_shared<ReportArguments>();
  Command& command =
      program.command("report", "Curves, samples and settings of a run as one HTML file");
  command.option("run", arguments->run,
                 {.help = "run directory", .value = "RUN", .required = true});
  command.option("--svg", arguments->svg,
                 {.help = "write the learning curve to this file instead", .value = "FILE"});
  command.option(
      "--perfetto", arguments->perfetto,
      {.help = "write what each worker did when to this file instead, for ui.perfetto.dev",
       .value = "FILE",
       .excludes = {"--svg"}});
  command.option("--title", arguments->title, {.help = "instead of the directory's name"});
  command.footer(
      "Writes RUN/report.html and prints its path.\n\nExample:\n  tailrace report "
      "runs/quickstart\n"
      "  tailrace report runs/quickstart --perfetto trace.json    # open it in ui.perfetto.dev");
  command.action([arguments] {
    report(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
