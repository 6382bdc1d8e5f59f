#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/run/load.h"
#include "cli/run/setup.h"
#include "cli/run/simulation.h"
#include "cli/simulate/simulated_run.h"
#include "cli/simulate/simulated_text.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/flags.h"
#include "core/base/json_text.h"
#include "core/base/log.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct SimulateArguments {
  std::string config, out;
  std::vector<std::string> overrides, modes;
  bool json = false;
};

void write_or_throw(const fs::path& file, const std::string& text) {
  if (auto written = write_file_atomic(file, text); !written)
    throw UserError("{}", written.failure().message);
}

// A new folder, with the config that the simulation is one of.
SimulatedFiles make_files(const std::string& out, const RunOptions& options) {
  std::error_code error;
  if (fs::exists(out, error) && !fs::is_empty(out, error))
    throw UserError(
        "--out {} is not empty: a simulation does not add to what is there. Name a new "
        "folder.",
        out);
  fs::create_directories(out, error);
  if (error) throw UserError("{}", describe_errno("create", out, error.value()));
  const RunPaths paths{out};
  // It does not prove itself, so that no launch goes on from it.
  write_or_throw(paths.config(),
                 "# What tailrace simulate has simulated.\n" + resolved_config(options));
  return {.paths = paths, .timeline_rows = options.scheduler.storage.timeline_rows};
}

SimulatedMode simulate_mode(const SimulateArguments& arguments, const std::string& mode,
                            const Registries& registries) {
  std::vector<std::string> overrides = arguments.overrides;
  if (!mode.empty()) overrides.push_back("scheduler.mode=" + mode);
  LoadedRun loaded = load_simulated_run(arguments.config, overrides, registries);
  const auto begun = std::chrono::steady_clock::now();
  try {
    SimulatedMode done;
    done.simulation = make_simulation(loaded.options, registries.environments);
    for (const std::string& note : done.simulation.notes) fmt::print(stderr, "note: {}\n", note);
    std::optional<SimulatedFiles> files;
    if (!arguments.out.empty()) files = make_files(arguments.out, loaded.options);
    Log log("simulate", "", LogLevel::kWarning);
    done.run = simulate(done.simulation, files, log);
    done.options = std::move(loaded.options);
    done.real_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (files) {
      write_or_throw(files->paths.machine(), "simulated: " + cluster_text(done) + "\n");
      write_or_throw(files->paths.simulation(), json_text(simulated_json(done), 2) + "\n");
    }
    return done;
  } catch (const UserError& error) {
    throw loaded.keys.placed(error);
  }
}

// A run that did not come to its end is no answer.
bool has_failed(const SimulatedMode& mode) {
  using simulator::World;
  return mode.run.stop == World::Stop::kHalted || mode.run.stop == World::Stop::kStuck;
}

int simulate_run(const SimulateArguments& arguments, const Registries& registries) {
  if (arguments.modes.empty()) {
    const SimulatedMode mode = simulate_mode(arguments, "", registries);
    if (arguments.json)
      fmt::print("{}\n", json_text(simulated_json(mode)));
    else
      fmt::print("{}", simulated_text(mode));
    return has_failed(mode) ? kExitFailed : kExitDone;
  }
  std::vector<SimulatedMode> modes;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& name : arguments.modes) {
    modes.push_back(simulate_mode(arguments, name, registries));
    rows.push_back(simulated_json(modes.back()));
    if (has_failed(modes.back()))
      fmt::print(stderr, "{}: {}\n", name, rows.back()["stopped"].get<std::string>());
  }
  if (arguments.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"modes", rows}}));
  else
    fmt::print("{}", simulated_table(modes));
  return std::ranges::any_of(modes, has_failed) ? kExitFailed : kExitDone;
}

}  // namespace

void add_simulate(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<SimulateArguments>();
  Command& command = program.command(
      "simulate", "Play a config on made-up hardware: step time, idle time by cause, cost");
  command.option("config", arguments->config,
                 {.help = "YAML file with a section simulate (docs/simulate.md)",
                  .value = "CONFIG",
                  .required = true});
  command.option("overrides", arguments->overrides,
                 {.help = "keys with other values than the file's: a.b=c",
                  .value = "KEY=VALUE",
                  .settings = true});
  std::vector<std::string> names;
  for (const std::string_view name : kEnumNames<scheduler::ModeName>) names.emplace_back(name);
  command.option("--modes", arguments->modes,
                 {.help = "simulate each of these modes, a row each", .one_of = names});
  command.option("--json", arguments->json, {.help = "one JSON object"});
  command.option("--out", arguments->out,
                 {.help = "leave a run directory for 'tailrace report' and its --perfetto",
                  .value = "DIR",
                  .excludes = {"--modes"}});
  command.footer(
      "The scheduler is the real one; workers, trainer, links and faults are as the section says. "
      "Nothing is trained, and neither model nor environment is needed.\n\n"
      "Examples:\n  tailrace simulate configs/simulate_64.yaml\n"
      "  tailrace simulate configs/simulate_64.yaml --modes sync,partial,async\n"
      "  tailrace simulate configs/simulate_64.yaml --out runs/simulated && tailrace report "
      "runs/simulated");
  command.action([arguments, &registries] { return simulate_run(*arguments, registries); });
}

}  // namespace tailrace
