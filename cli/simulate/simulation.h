// A run as a simulation of it: the law of the run, the cluster that its hardware file
// describes, and the episodes that are played there.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/inputs/resolved_run.h"
#include "cli/simulate/recorded_episodes.h"
#include "sandbox/registry.h"
#include "scheduler/simulator/cluster.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/world.h"
#include "scheduler/state/config.h"

namespace tailrace {

struct Simulation {
  scheduler::Config law;
  simulator::Cluster cluster;
  std::shared_ptr<const simulator::EpisodeSource> episodes;
  uint64_t seed = 0;
  double seconds = 0;  // of virtual time, at most
  HardwareSection trainer_hardware = {};
  int64_t trainer_workers = 1;
  bool takes_turns = false;        // run.colocate: the trainer has no device of its own
  std::vector<std::string> notes;  // what a person should know

  int64_t rollout_workers() const;
  int64_t rollout_devices() const;
  int64_t trainer_devices() const {
    return takes_turns ? 0 : trainer_workers * trainer_hardware.devices;
  }
};

// Its sizes can be read here: it is made, or its folder is there. A simulated run may lack it.
bool knows_model(const RunOptions& options);

// The workers of a run, as it has them: pools, slots, when turns are stored, reward workers. What
// they compute on, and the trainer, is left as it is by default.
simulator::Cluster cluster_of(const ResolvedRun& run);

// A recorded episode, as the simulator has it.
simulator::Episode episode_of(const RecordedEpisode& recorded);

// Options that load_simulated_run() has read. Reads the datasets for their length, the config.json
// of the model for the size of its weights, and the recorded episodes; neither weights nor
// tokenizer. Throws UserError with its key.
Simulation make_simulation(const ResolvedRun& run,
                           const sandbox::EnvironmentRegistry& environments);

}  // namespace tailrace
