// A run as a simulation of it: the law of the run, the cluster that the section `simulate`
// describes, and the episodes that are played there.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "sandbox/registry.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/world.h"
#include "scheduler/state/config.h"

namespace tailrace {

struct Simulation {
  scheduler::Config law;
  simulator::Cluster cluster;
  std::unique_ptr<simulator::EpisodeSource> episodes;
  uint64_t seed = 0;
  double seconds = 0;  // of virtual time, at most
  int64_t rollout_workers = 0, rollout_devices = 0, trainer_devices = 0;
  std::vector<std::string> notes;  // what a person should know
};

// Options that load_simulated_run() has read. Reads the datasets for their length, the config.json
// of the model for the size of its weights, and the recorded episodes; neither weights nor
// tokenizer. Throws UserError with its key.
Simulation make_simulation(const RunOptions& options,
                           const sandbox::EnvironmentRegistry& environments);

}  // namespace tailrace
