#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/view/sample_trace.h"
#include "core/base/error.h"
#include "core/base/run_directory.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

struct TraceArguments {
  std::string run;
  std::vector<std::string> sample;
  bool json = false;
};

void trace(const TraceArguments& arguments) {
  const RunPaths paths{arguments.run};
  if (!std::filesystem::exists(paths.config()))
    throw UserError("{} is no run directory; 'tailrace launch' makes one.", arguments.run);
  const auto query = parse_sample_query(arguments.sample);
  if (!query) throw UserError("{}", query.failure().message);
  auto found = find_sample(paths, query.value());
  if (!found) throw UserError("{}", found.failure().message);
  std::unique_ptr<text::Tokenizer> tokenizer;
  try {
    if (!arguments.json) tokenizer = text::load_tokenizer(paths.tokenizer());
  } catch (const UserError& error) {
    // Ids are still worth showing.
    found.value().notes.push_back(error.what());
  }
  // Not on stdout, which is the sample's.
  for (const std::string& note : found.value().notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}", arguments.json ? sample_trace_json(found.value()) + "\n"
                                  : show_sample_trace(found.value(), tokenizer.get()));
}

}  // namespace

void add_trace(CLI::App& app) {
  auto arguments = std::make_shared<TraceArguments>();
  auto* command = app.add_subcommand(
      "trace", "One sample: who sampled and scored it when, and its tokens as they were trained");
  command->add_option("run", arguments->run, "run directory")->required()->type_name("RUN");
  command
      ->add_option("sample", arguments->sample,
                   "its name as logs and samples.jsonl print it, or "
                   "enough of it: prompt=12 member=3")
      ->required()
      ->type_name("SAMPLE");
  command->add_flag("--json", arguments->json, "one JSON object, with every digit");
  command->footer(
      "Reads RUN/timeline.jsonl (scheduler.timeline_rows) and RUN/traces (train.trace_steps), of a "
      "living run too.\n\nExample:\n  tailrace trace runs/quickstart prompt=12 member=3");
  command->callback([arguments] { trace(*arguments); });
}

}  // namespace tailrace
