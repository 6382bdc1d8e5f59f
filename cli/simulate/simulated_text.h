// What a simulation found, for a person and as JSON.
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/run/options.h"
#include "cli/run/simulation.h"
#include "cli/simulate/simulated_run.h"

namespace tailrace {

// A run with what it was a simulation of.
struct SimulatedMode {
  RunOptions options;
  Simulation simulation;
  SimulatedRun run;
  double real_seconds = 0;  // that it took
};

// Its workers and devices, on a line.
std::string cluster_text(const SimulatedMode& mode);

// The numbers of one; every other text is made of them.
nlohmann::ordered_json simulated_json(const SimulatedMode& mode);

// A screen about one.
std::string simulated_text(const SimulatedMode& mode);

// A table of several, a row each.
std::string simulated_table(std::span<const SimulatedMode> modes);

}  // namespace tailrace
