#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/run_state.h"
#include "cli/view/sample_trace.h"
#include "core/base/error.h"
#include "core/base/flags.h"
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
  add_note_of_journal(paths, found.value().notes);
  // Not on stdout, which is the sample's.
  for (const std::string& note : found.value().notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}", arguments.json ? sample_trace_json(found.value()) + "\n"
                                  : show_sample_trace(found.value(), tokenizer.get()));
}

}  // namespace

void add_trace(Command& program) {
  auto arguments = std::make_shared<TraceArguments>();
  Command& command = program.command(
      "trace", "One sample: who sampled and scored it when, and its tokens as they were trained");
  command.option("run", arguments->run,
                 {.help = "run directory", .value = "RUN", .required = true});
  command.option("sample", arguments->sample,
                 {.help = "its name as logs and samples.jsonl print it, or enough of it: "
                          "prompt=12 member=3",
                  .value = "SAMPLE",
                  .required = true});
  command.option("--json", arguments->json, {.help = "one JSON object, with every digit"});
  command.footer(
      "Reads RUN/timeline.jsonl (scheduler.timeline_rows) and RUN/traces (train.trace_steps), of a "
      "living run too.\n\nExample:\n  tailrace trace runs/quickstart prompt=12 member=3");
  command.action([arguments] {
    trace(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
