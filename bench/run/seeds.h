// Whole runs of one config over several seeds: does the recipe learn every time?
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tailrace {

struct SeedsCase {
  std::string config;
  std::vector<std::string> overrides;
  std::string out = "runs/seeds";
  int num_seeds = 10, first_seed = 0;
};

struct SeedRun {
  int seed = 0;
  double success_first = 0, success_last = 0;  // held-out, before and after RL
  double invalid_first = 0, invalid_last = 0;  // share of actions that were invalid
  double seconds = 0;                          // wall clock of the whole launch
};

struct SeedsReport {
  std::vector<SeedRun> runs;
};

// Launches this same binary once a seed, one after another. Throws UserError when a run fails (its
// directory holds the logs). `on_run` hears of each run when it is over.
SeedsReport bench_seeds(const SeedsCase& setup, const std::function<void(const SeedRun&)>& on_run);

}  // namespace tailrace
