// A run simulated from its begin to its end, in one mode or in several, for `tailrace plan
// --whole`.
//
// Thread: one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/inputs/load.h"

namespace tailrace {

struct WholeSimulation {
  std::string out;                 // a run directory to leave; empty: none
  std::vector<std::string> modes;  // empty: its own
  bool json = false;
  // The run in a mode; empty: its own. Throws UserError.
  std::function<LoadedRun(const std::string& mode)> load;
  // Puts the place of its key in front of a mistake.
  std::function<UserError(const UserError&)> placed;
};

// Prints it. The exit status: a run that did not come to its end is no answer.
int simulate_whole(const WholeSimulation& wanted);

}  // namespace tailrace
