#include "cli/prepare/plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <signal.h>

#include "cli/commands/commands.h"
#include "cli/commands/quick_plan.h"
#include "cli/commands/whole_simulation.h"
#include "cli/config/algorithm.h"
#include "cli/config/hardware_file.h"
#include "cli/inputs/length.h"
#include "cli/inputs/load.h"
#include "cli/inputs/planned_model.h"
#include "cli/plan/card_fit.h"
#include "cli/plan/card_numbers.h"
#include "cli/plan/plan_text.h"
#include "cli/plan/planned_run.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/setup.h"
#include "cli/simulate/simulation.h"
#include "cli/view/progress.h"
#include "cli/view/wrapped.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/config/flags.h"

namespace tailrace {
namespace {

struct PlanArguments {
  std::string config, like, hardware, out;
  std::vector<std::string> overrides, modes;
  double price = 0;
  bool quick = false, whole = false, json = false;
};

// The words of the command line for the config, and those for the hardware file.
struct PlanOverrides {
  std::vector<std::string> config, hardware;
};
PlanOverrides overrides_of(const PlanArguments& arguments) {
  PlanOverrides overrides;
  for (const std::string& text : arguments.overrides)
    (sets_hardware(text) ? overrides.hardware : overrides.config).push_back(text);
  if (arguments.hardware.empty() && !overrides.hardware.empty())
    throw UserError("override {}: there is no hardware to set it of. Give --hardware NAME or FILE.",
                    overrides.hardware.front());
  return overrides;
}

// With this mode in the place of one that the person has given; empty: as they are.
std::vector<std::string> in_mode(std::vector<std::string> overrides, std::string_view mode) {
  constexpr std::string_view kKey = "scheduler.mode=";
  if (mode.empty()) return overrides;
  std::erase_if(overrides, [&](const std::string& text) { return text.starts_with(kKey); });
  overrides.push_back(fmt::format("{}{}", kKey, mode));
  return overrides;
}

// Where nothing is measured: the run on hardware that is described.
class Described {
 public:
  Described(const PlanArguments& arguments, const Registries& registries)
      : arguments_(arguments), registries_(registries), overrides_(overrides_of(arguments)) {
    hardware_ = load_hardware(arguments.hardware, overrides_.hardware);
    SimulateSection& section = hardware_.section;
    if (arguments.price > 0) {
      if (section.hardware.empty()) section.hardware.push_back({.name = "default"});
      for (HardwareSection& hardware : section.hardware) hardware.price_per_hour = arguments.price;
    }
    if (!arguments.like.empty()) section.episodes.from = arguments.like;
  }

  // In this mode; empty: its own.
  LoadedRun load(const std::string& mode = "") const {
    const std::vector<std::string> overrides = in_mode(overrides_.config, mode);
    LoadedRun loaded = load_simulated_run(arguments_.config, overrides, hardware_, registries_);
    try {
      const std::optional<ModelConfig> policy = policy_of(loaded);
      fill_from_cards(loaded.run.options, hardware_.keys, policy.value_or(usual_policy()),
                      policy.has_value());
    } catch (const UserError& error) {
      throw loaded.keys.placed(error);
    }
    return loaded;
  }
  // Of the run, where its sizes are known here.
  static std::optional<ModelConfig> policy_of(const LoadedRun& loaded) {
    if (!knows_model(loaded.run.options)) return std::nullopt;
    return planned_model(loaded.run, loaded.registries.environments);
  }
  // For a person; empty: nothing.
  std::string note(const RunOptions& options) const {
    const bool is_card = std::ranges::any_of(hardware_.section.hardware,
                                             [](const auto& card) { return card.is_card(); });
    if (!is_card || knows_model(options)) return "";
    return wrapped(
        fmt::format("{}: those of a dense policy of 8 B parameters are taken, so that times and "
                    "costs are of such a one, and whether it fits is not told",
                    options.model.path.empty()
                        ? "the sizes of the model are not known (model.path, whose config.json is "
                          "enough)"
                        : fmt::format("model.path = {} has no config.json, which would be enough",
                                      options.model.path)),
        "note: ");
  }
  UserError placed(const UserError& error) const {
    constexpr std::string_view kFrom = "episodes.from";
    std::string text = error.what();
    if (arguments_.like.empty() || error.key() != kFrom || !text.starts_with(kFrom))
      return hardware_.keys.placed(error);
    return UserError("{}", text.replace(0, kFrom.size(), "--like"));
  }

 private:
  const PlanArguments& arguments_;
  const Registries& registries_;
  PlanOverrides overrides_;
  HardwareFile hardware_;
};

void refuse_supervised(const PlanArguments& arguments, const ResolvedRun& run) {
  if (run.supervised_only)
    throw UserError(
        "{} has no steps of reinforcement learning to plan. Try 'tailrace plan {} --quick'.",
        arguments.config, arguments.config);
}

void say_what_takes_time(const std::string& line) { show(stderr, line + " ...\n"); }

int show_planned(const PlanArguments& arguments, const std::optional<Plan>& memory,
                 const PlannedRun& planned) {
  show(stdout, arguments.json ? planned_json(memory, planned) : planned_text(planned));
  return kExitDone;
}

int plan_measured(const LoadedRun& loaded, const PlanArguments& arguments,
                  const Registries& registries) {
  const RunOptions& options = loaded.run.options;
  if (arguments.quick) {
    ::signal(SIGPIPE, SIG_IGN);
    const QuickPlan quick =
        quick_plan(loaded, directory_of(options, ""), registries, arguments.json ? stderr : stdout);
    if (arguments.json)
      show(stdout, memory_json(quick.plan, std::nullopt));
    else
      show_quick_plan(quick);
    return kExitDone;
  }
  refuse_supervised(arguments, loaded.run);
  // The plan is for no run: nothing is kept of an earlier launch.
  const Plan memory = checked_plan(RunPaths{}, place(loaded.run, loaded.registries.environments),
                                   loaded.registries, /*is_new=*/true);
  if (!arguments.json)
    show(stdout, format_plan(memory, loaded.run, describe_algorithm(options, loaded.keys)));
  // It takes as much as the run.
  check_size(memory, memory_facts());
  const PlanRequest request{
      .run = loaded.run,
      .registries = loaded.registries,
      // A plan has the steps of the prompts that are not too long.
      .steps = memory.steps,
      .like = arguments.like,
      .program = std::filesystem::read_symlink("/proc/self/exe"),
      .with_mode =
          [&](scheduler::ModeName mode) {
            return load_run_options(arguments.config, in_mode(arguments.overrides, name_of(mode)),
                                    registries)
                .run;
          },
      .say = say_what_takes_time};
  return show_planned(arguments, memory, plan_here(request));
}

int plan_described(const Described& described, const LoadedRun& loaded,
                   const PlanArguments& arguments) {
  const RunOptions& options = loaded.run.options;
  const std::optional<ModelConfig> policy = Described::policy_of(loaded);
  std::optional<Plan> memory;
  std::optional<CardFit> fit;
  if (policy) {
    memory = plan_on_cards(loaded.run, *policy);
    fit = fit_on_cards(loaded.run, *policy, *memory);
    if (!arguments.json)
      show(stdout, format_plan(*memory, changed(loaded.run, with_context(options, *policy)),
                               describe_algorithm(options, loaded.keys)) +
                       fit_text(*fit));
    if (!fit->fits() || arguments.quick) {
      if (arguments.json) show(stdout, memory_json(*memory, fit));
      return fit->fits() ? kExitDone : kExitFailed;
    }
  }
  if (arguments.quick)
    throw UserError(
        "the sizes of the model are not known here, and --quick is about nothing else. Give "
        "model.path, a folder of which config.json is enough, or leave --quick out.");
  const PlanRequest request{
      .run = loaded.run,
      .registries = loaded.registries,
      .steps = memory ? memory->steps : most_steps(loaded.run),
      .with_mode =
          [&](scheduler::ModeName mode) { return described.load(std::string(name_of(mode))).run; },
      .say = say_what_takes_time,
      .tries_turns = fit && fit->fits_in_turn()};
  PlannedRun planned = plan_on_hardware(request);
  const PlannedMode& best = planned.chosen();
  planned.gaps = gaps_of(loaded.run, policy ? &*policy : nullptr,
                         best.simulated.options.simulate.trainer.workers);
  planned.fit = std::move(fit);
  return show_planned(arguments, memory, planned);
}

// Says on stderr what does not fit, and what would. A policy whose sizes are not known fits.
bool fits(const Described& described, const LoadedRun& loaded) {
  try {
    const std::optional<ModelConfig> policy = Described::policy_of(loaded);
    if (!policy) return true;
    const CardFit fit = fit_on_cards(loaded.run, *policy, plan_on_cards(loaded.run, *policy));
    if (!fit.fits()) show(stderr, fit_text(fit));
    return fit.fits();
  } catch (const UserError& error) {
    throw described.placed(loaded.keys.placed(error));
  }
}

int plan(const PlanArguments& arguments, const Registries& registries) {
  if (arguments.hardware == "list") {
    show(stdout, hardware_table());
    return kExitDone;
  }
  if (arguments.config.empty())
    throw UserError("config is required\n       Run 'tailrace plan --help'.");
  if (arguments.hardware.empty()) {
    (void)overrides_of(arguments);
    const LoadedRun loaded = load_run_options(arguments.config, arguments.overrides, registries);
    try {
      return plan_measured(loaded, arguments, registries);
    } catch (const UserError& error) {
      throw loaded.keys.placed(error);
    }
  }
  const Described described(arguments, registries);
  const LoadedRun loaded = described.load();
  show(stderr, described.note(loaded.run.options));
  const bool is_whole = arguments.whole || !arguments.modes.empty() || !arguments.out.empty();
  if (is_whole && !fits(described, loaded)) return kExitFailed;
  if (is_whole)
    return simulate_whole(
        {.out = arguments.out,
         .modes = arguments.modes,
         .json = arguments.json,
         .load = [&](const std::string& mode) { return described.load(mode); },
         .placed = [&](const UserError& error) { return described.placed(error); }});
  try {
    return plan_described(described, loaded, arguments);
  } catch (const UserError& error) {
    throw described.placed(loaded.keys.placed(error));
  }
}

}  // namespace

void add_plan(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<PlanArguments>();
  Command& command = program.command(
      "plan", "What a run takes before it runs: memory, time of a step, cost, the best mode");
  command.option("config", arguments->config, {.help = "YAML file", .value = "CONFIG"});
  command.option("overrides", arguments->overrides,
                 {.help = "keys with other values than the file's: a.b=c; hardware.KEY=VALUE of "
                          "the hardware file",
                  .value = "KEY=VALUE",
                  .settings = true});
  command.option("--quick", arguments->quick,
                 {.help = "print batches, updates and memory, and stop: nothing is measured"});
  command.option("--hardware", arguments->hardware,
                 {.help = "what to plan it on without having it: h100-80 and others ('list' shows "
                          "them), or a file (docs/hardware.md)",
                  .value = "NAME|FILE"});
  command.option("--price", arguments->price,
                 {.help = "of a device for an hour, in any currency",
                  .value = "AMOUNT",
                  .max = 1e9,
                  .needs = "--hardware"});
  command.option(
      "--like", arguments->like,
      {.help = "a run whose episodes are played again; else some are played now, or drawn",
       .value = "RUN"});
  command.option("--whole", arguments->whole,
                 {.help = "the whole run in its own mode, in place of its beginning in all modes",
                  .needs = "--hardware",
                  .excludes = {"--quick"}});
  std::vector<std::string> names;
  for (const std::string_view name : kEnumNames<scheduler::ModeName>) names.emplace_back(name);
  command.option("--modes", arguments->modes,
                 {.help = "the whole run in each of these modes, a row each",
                  .one_of = names,
                  .needs = "--hardware",
                  .excludes = {"--quick"}});
  command.option("--out", arguments->out,
                 {.help = "leave a run directory of --whole for 'tailrace report' and its "
                          "--perfetto",
                  .value = "DIR",
                  .needs = "--hardware",
                  .excludes = {"--modes", "--quick"}});
  command.option("--json", arguments->json, {.help = "print one JSON object"});
  command.footer(
      "It measures the parts of the run for some seconds, of large models for a minute, and takes "
      "the memory of the run meanwhile. With --hardware nothing is measured: the real scheduler "
      "plays the run on numbers of a data sheet, or of a file of yours, and neither model, data "
      "nor GPU are needed.\n\n"
      "Examples:\n  tailrace plan configs/quickstart.yaml --quick\n"
      "  tailrace plan configs/quickstart.yaml --like runs/first\n"
      "  tailrace plan configs/gsm8k.yaml model.path=DIR --hardware h100-80 --price 2.49\n"
      "  tailrace plan configs/simulate_64.yaml --hardware configs/simulate_64.hardware.yaml");
  command.action([arguments, &command, &registries] {
    if (command.given("--out") && arguments->out.empty())
      throw UserError("--out is empty. Name a new folder.");
    if (command.given("--hardware") && arguments->hardware.empty())
      throw UserError("--hardware is empty. Give a name or a file, or leave it out.");
    return plan(*arguments, registries);
  });
}

}  // namespace tailrace
