// The results of a simulation, for a person and as JSON.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "cli/config/options.h"
#include "cli/simulate/simulated_run.h"
#include "cli/simulate/simulation.h"

namespace tailrace {

// A run with what it was a simulation of.
struct SimulatedMode {
  RunOptions options = {};
  Simulation simulation = {};
  SimulatedRun run = {};
  double real_seconds = 0;  // that it took
};

// "120 ms", "12.3 s", "4 min 05 s", "3 h 20 min", "2 d 03 h".
std::string time_text(double seconds);
// The text of a number that is counted in thousands and more: "42.7k".
std::string number_text(double value);
// "generate 71 %, waits for the trainer 20 %": the largest first, what is below half a percent left
// out. `whose` stands in front, unless there is nothing to say.
std::string shares_text(std::string_view whose, const UseShares& shares);

// Its workers and devices, on a line.
std::string cluster_text(const SimulatedMode& mode);

// The numbers of one; every other text is made of them.
nlohmann::ordered_json simulated_json(const SimulatedMode& mode);

// A screen about one.
std::string simulated_text(const SimulatedMode& mode);

// A table of several, a row each.
std::string simulated_table(std::span<const SimulatedMode> modes);

}  // namespace tailrace
