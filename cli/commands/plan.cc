#include "cli/run/plan.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/plan/plan_text.h"
#include "cli/plan/planned_run.h"
#include "cli/run/algorithm.h"
#include "cli/run/datasets.h"
#include "cli/run/length.h"
#include "cli/run/load.h"
#include "cli/run/setup.h"
#include "cli/run/simulation.h"
#include "core/base/error.h"
#include "core/base/flags.h"
#include "core/base/machine.h"

namespace tailrace {
namespace {

struct PlanArguments {
  std::string config, like, hardware;
  std::vector<std::string> overrides;
  bool json = false;
};

LoadedRun load(const PlanArguments& arguments, std::vector<std::string> overrides,
               const Registries& registries) {
  // Later ones win, so that a mode that is tried stands behind what the person has given.
  overrides.insert(overrides.begin(), arguments.overrides.begin(), arguments.overrides.end());
  if (arguments.hardware.empty()) return load_run_options(arguments.config, overrides, registries);
  overrides.push_back("simulate.rollout_hardware=" + arguments.hardware);
  return load_simulated_run(arguments.config, overrides, registries);
}

int plan(const LoadedRun& loaded, const PlanArguments& arguments, const Registries& registries) {
  const RunOptions& options = loaded.options;
  if (supervised_only(options))
    throw UserError(
        "{} has no steps of reinforcement learning to plan. Try 'tailrace launch {} --dry-run'.",
        arguments.config, arguments.config);
  const bool is_here = arguments.hardware.empty();
  std::optional<Plan> memory;
  if (is_here) {
    // The plan is for no run: nothing is kept of an earlier launch.
    memory = checked_plan(RunPaths{}, options, loaded.registries, /*is_new=*/true);
    if (!arguments.json)
      show(stdout, format_plan(*memory, options, describe_algorithm(options, loaded.keys)));
    // It takes as much as the run.
    check_size(*memory, memory_facts());
  } else if (knows_model(options)) {
    memory = make_plan(options, planned_model(options, loaded.registries.environments),
                       /*available_bytes=*/0);
    if (!arguments.json)
      show(stdout, format_plan(*memory, options, describe_algorithm(options, loaded.keys)));
  }
  const PlanRequest request{
      .options = options,
      .registries = loaded.registries,
      // A plan has the steps of the prompts that are not too long.
      .steps = memory ? memory->steps : most_steps(options),
      .like = arguments.like,
      .program = std::filesystem::read_symlink("/proc/self/exe"),
      .with_mode =
          [&](scheduler::ModeName mode) {
            return load(arguments, {fmt::format("scheduler.mode={}", name_of(mode))}, registries)
                .options;
          },
      .say = [](const std::string& line) { show(stderr, line + " ...\n"); }};
  const PlannedRun planned = is_here ? plan_here(request) : plan_on_hardware(request);
  show(stdout, arguments.json ? planned_json(memory, planned) : planned_text(planned));
  return kExitDone;
}

}  // namespace

void add_plan(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<PlanArguments>();
  Command& command = program.command(
      "plan", "What a run takes before it runs: memory, time of a step, the best mode");
  command.option("config", arguments->config,
                 {.help = "YAML file", .value = "CONFIG", .required = true});
  command.option("overrides", arguments->overrides,
                 {.help = "keys with other values than the file's: a.b=c",
                  .value = "KEY=VALUE",
                  .settings = true});
  command.option(
      "--like", arguments->like,
      {.help = "a run whose episodes are played again; else some are played now", .value = "RUN"});
  command.option("--hardware", arguments->hardware,
                 {.help = "one of simulate.hardware, which rollout workers compute on; nothing is "
                          "measured here",
                  .value = "NAME"});
  command.option("--json", arguments->json, {.help = "print one JSON object"});
  command.footer(
      "It measures the parts of the run for some seconds, of large models for a minute, and takes "
      "the memory of the run meanwhile. 'launch --dry-run' shows the memory alone. With --hardware "
      "the run is simulated on numbers of the config (docs/simulate.md).\n\n"
      "Examples:\n  tailrace plan configs/quickstart.yaml --like runs/first\n"
      "  tailrace plan configs/simulate_64.yaml --hardware h100");
  command.action([arguments, &registries] {
    const LoadedRun loaded = load(*arguments, {}, registries);
    try {
      return plan(loaded, *arguments, registries);
    } catch (const UserError& error) {
      throw loaded.keys.placed(error);
    }
  });
}

}  // namespace tailrace
