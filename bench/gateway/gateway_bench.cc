// What the gateway costs, over sockets of this machine: what it adds to a call, how many sessions
// and connections it holds, how soon a call whose client hung up is over, and what streams take
// from the engine.
//
// Checked in each part: every answer comes and says what the generator gave, every turn is captured
// and nothing is left in the generator.
#include <algorithm>

#include "bench/gateway/parts.h"
#include "bench/report/program.h"
#include "core/base/file_descriptor.h"

namespace tailrace {
namespace {

const std::vector<std::string> kParts = {"idle", "overhead", "sessions", "cancel", "streams"};

void measure(const std::vector<std::string>& parts, GatewayBenchOptions options,
             const Program& program) {
  options.threads = program.threads();
  allow_all_files();
  Report report =
      program.report({{"generator", "16 tokens in 100 steps of 0.2 ms"}, {"model", "stories260K"}});
  const auto wants = [&](const char* part) { return std::ranges::count(parts, part) > 0; };
  if (wants("idle")) measure_idle(options, report);
  if (wants("overhead")) measure_overhead(options, report);
  if (wants("sessions")) measure_sessions(options, report);
  if (wants("cancel")) measure_cancel(options, report);
  if (wants("streams")) measure_streams(options, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  GatewayBenchOptions options;
  std::vector<std::string> parts = kParts;
  Program program("gateway", TAILRACE_MEASURES, "gateway --parts overhead,cancel --calls 500");
  Command& flags = program.flags();
  flags.option("--parts", parts, {.help = "which", .one_of = kParts});
  flags.option("--model", options.model, {.help = "of the engine", .value = "DIR"});
  flags.option("--tokenizer", options.tokenizer,
               {.help = "with the chat template of the parts without an engine", .value = "DIR"});
  flags.option("--calls", options.calls, {.help = "of a row", .min = 20, .max = 1000000});
  flags.option("--sessions", options.sessions, {.help = "at once", .min = 1, .max = 9000});
  flags.option("--turns", options.turns, {.help = "of a session", .min = 1, .max = 100});
  flags.option(
      "--idle", options.idle,
      {.help = "connections, if the limit of open files allows as many", .min = 1, .max = 1 << 20});
  flags.option("--runs", options.runs, {.help = "of cancelled calls", .min = 1, .max = 10000});
  return program.run(argc, argv, [&] { measure(parts, options, program); });
}
