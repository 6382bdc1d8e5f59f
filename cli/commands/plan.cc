#include "cli/run/plan.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/plan/run_time.h"
#include "cli/run/algorithm.h"
#include "cli/run/datasets.h"
#include "cli/run/load.h"
#include "cli/run/setup.h"
#include "core/base/error.h"
#include "core/base/flags.h"
#include "core/base/machine.h"

namespace tailrace {
namespace {

struct PlanArguments {
  std::string config, like;
  std::vector<std::string> overrides;
  bool json = false;
};

int plan(const LoadedRun& loaded, const PlanArguments& arguments) {
  const RunOptions& options = loaded.options;
  if (supervised_only(options))
    throw UserError(
        "{} has no steps of reinforcement learning to plan. Try 'tailrace launch {} --dry-run'.",
        arguments.config, arguments.config);
  // Of no run: nothing is kept of an earlier launch.
  Plan made = checked_plan(RunPaths{}, options, loaded.registries, /*is_new=*/true);
  if (!arguments.json)
    show(stdout, format_plan(made, options, describe_algorithm(options, loaded.keys)));
  // It takes as much as the run.
  check_size(made, memory_facts());
  const RunTime time = plan_time(options, loaded.registries, made.steps, arguments.like,
                                 std::filesystem::read_symlink("/proc/self/exe"),
                                 [](const std::string& line) { show(stderr, line + " ...\n"); });
  show(stdout, arguments.json ? time_json(made, time) : format_time(time));
  return kExitDone;
}

}  // namespace

void add_plan(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<PlanArguments>();
  Command& command = program.command(
      "plan", "What a run takes on this machine before it runs: memory, time of a step");
  command.option("config", arguments->config,
                 {.help = "YAML file", .value = "CONFIG", .required = true});
  command.option("overrides", arguments->overrides,
                 {.help = "keys with other values than the file's: a.b=c",
                  .value = "KEY=VALUE",
                  .settings = true});
  command.option(
      "--like", arguments->like,
      {.help = "a run whose episodes' lengths are taken; else some are played", .value = "RUN"});
  command.option("--json", arguments->json, {.help = "print one JSON object"});
  command.footer(
      "It measures the parts of the run for some seconds, of large models for a minute, and takes "
      "the memory of the run meanwhile. 'launch --dry-run' shows the memory alone.\n\n"
      "Example:\n  tailrace plan configs/quickstart.yaml --like runs/first");
  command.action([arguments, &registries] {
    const LoadedRun loaded = load_run_options(arguments->config, arguments->overrides, registries);
    try {
      return plan(loaded, *arguments);
    } catch (const UserError& error) {
      throw loaded.keys.placed(error);
    }
  });
}

}  // namespace tailrace
