#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/view/report_page.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

struct ReportArguments {
  std::string run, svg, title;
};

void report(const ReportArguments& arguments) {
  RunPaths paths{arguments.run};
  auto data = read_report_data(paths);
  if (!data)
    throw UserError("{}. A run directory holds metrics.jsonl; 'tailrace launch' makes one.",
                    data.failure().message);
  if (!arguments.title.empty()) data.value().name = arguments.title;
  // Not on stdout, which holds the path of the page alone.
  for (const std::string& note : data.value().notes) fmt::print(stderr, "note: {}\n", note);
  std::filesystem::path target =
      arguments.svg.empty() ? paths.report() : std::filesystem::path(arguments.svg);
  auto written =
      write_file_atomic(target, arguments.svg.empty() ? make_report_page(data.value())
                                                      : make_learning_curve(data.value()));
  if (!written) throw UserError("{}", written.failure().message);
  fmt::print("{}\n", target.string());
}

}  // namespace

void add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  auto* command =
      app.add_subcommand("report", "Curves, samples and settings of a run as one HTML file");
  command->add_option("run", arguments->run, "run directory")->required()->type_name("RUN");
  command->add_option("--svg", arguments->svg, "write the learning curve to this file instead")
      ->type_name("FILE");
  command->add_option("--title", arguments->title, "instead of the directory's name");
  command->footer(
      "Writes RUN/report.html and prints its path.\n\nExample:\n  tailrace report runs/quickstart");
  command->callback([arguments] { report(*arguments); });
}

}  // namespace tailrace
