#include "cli/commands/whole_simulation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cli/config/counted.h"
#include "cli/prepare/setup.h"
#include "cli/simulate/simulated_run.h"
#include "cli/simulate/simulated_text.h"
#include "cli/simulate/simulation.h"
#include "cli/simulate/simulation_size.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/machine.h"
#include "core/base/version.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

void write_or_throw(const fs::path& file, const std::string& text) {
  if (auto written = write_file_atomic(file, text); !written)
    throw UserError("{}", written.failure().message);
}

// A new folder, which says from the beginning what it is.
SimulatedFiles make_files(const std::string& out, const RunOptions& options) {
  std::error_code error;
  const bool is_there = fs::exists(out, error);
  const bool is_empty = is_there && !error && fs::is_empty(out, error);
  if (error) throw UserError("--out: {}", describe_errno("read", out, error.value()));
  if (is_there && !is_empty)
    throw UserError(
        "--out {} is not empty: a simulation does not add to what is there. Name a new "
        "folder.",
        out);
  fs::create_directories(out, error);
  if (error) throw UserError("{}", describe_errno("create", out, error.value()));
  const RunPaths paths{out};
  // First, so that a folder whose simulation was killed says so itself.
  write_or_throw(paths.simulation(), "{\"stopped\": \"it has not come to its end\"}\n");
  write_or_throw(paths.machine(), "simulated\n");
  RunOptions kept = options;
  kept.run.dir.clear();
  const std::string title = fmt::format(
      "# Simulated by tailrace {}: 'tailrace plan config.yaml --hardware hardware.yaml --whole' "
      "here "
      "plays the same once more.",
      version());
  // It does not prove itself, so that no launch goes on from it.
  write_or_throw(paths.config(),
                 title + " It is no run, and no launch goes on from it.\n" + print_config(kept));
  write_or_throw(paths.hardware(), title + "\n" + print_config(options.simulate));
  return {.paths = paths, .timeline_rows = options.scheduler.storage.timeline_rows};
}

// For a person who waits: a line that is written over, from the third second on.
class Progress {
 public:
  Progress() : shows_(::isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (has_shown_) fmt::print(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;

  void show(double seconds, int64_t steps, double until) {
    const auto now = std::chrono::steady_clock::now();
    if (!shows_ || now < next_) return;
    next_ = now + std::chrono::seconds(1);
    has_shown_ = true;
    fmt::print(stderr, "\r\033[Ksimulated {} in {:.1f} h of at most {:.0f} h",
               counted(steps, "step"), seconds / 3600, until / 3600);
  }

 private:
  const bool shows_;
  bool has_shown_ = false;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(3);
};

SimulatedMode simulate_mode(const WholeSimulation& wanted, const std::string& mode) {
  LoadedRun loaded = wanted.load(mode);
  const auto begun = std::chrono::steady_clock::now();
  try {
    SimulatedMode done;
    done.simulation = make_simulation(loaded.run, loaded.registries.environments);
    const SimulationSize size = size_of(done.simulation);
    require_size(size, memory_facts());
    if (const std::string note = size_note(size); !note.empty())
      done.simulation.notes.push_back(note);
    for (const std::string& note : done.simulation.notes) fmt::print(stderr, "note: {}\n", note);
    std::optional<SimulatedFiles> files;
    if (!wanted.out.empty()) files = make_files(wanted.out, loaded.run.options);
    {
      Progress progress;
      done.run = simulate(done.simulation, files, [&](double seconds, int64_t steps) {
        progress.show(seconds, steps, done.simulation.seconds);
      });
    }
    done.options = std::move(loaded.run.options);
    done.real_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (files) {
      write_or_throw(files->paths.machine(), "simulated: " + cluster_text(done) + "\n");
      write_or_throw(files->paths.simulation(), json_text(simulated_json(done), 2) + "\n");
    }
    return done;
  } catch (const UserError& error) {
    throw wanted.placed(loaded.keys.placed(error));
  }
}

bool has_failed(const SimulatedMode& mode) {
  using simulator::World;
  return mode.run.stop == World::Stop::kHalted || mode.run.stop == World::Stop::kStuck;
}

}  // namespace

int simulate_whole(const WholeSimulation& wanted) {
  if (wanted.modes.empty()) {
    const SimulatedMode mode = simulate_mode(wanted, "");
    if (wanted.json)
      fmt::print("{}\n", json_text(simulated_json(mode)));
    else
      fmt::print("{}", simulated_text(mode));
    return has_failed(mode) ? kExitFailed : kExitDone;
  }
  std::vector<SimulatedMode> modes;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& name : wanted.modes) {
    modes.push_back(simulate_mode(wanted, name));
    rows.push_back(simulated_json(modes.back()));
    if (has_failed(modes.back()))
      fmt::print(stderr, "{}: {}\n", name, rows.back()["stopped"].get<std::string>());
  }
  if (wanted.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"modes", rows}}));
  else
    fmt::print("{}", simulated_table(modes));
  return std::ranges::any_of(modes, has_failed) ? kExitFailed : kExitDone;
}

}  // namespace tailrace
