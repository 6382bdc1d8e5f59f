// The costs of a run on this machine, as numbers: measured by calibrate(), simulated by plan_run().
//
// Thread: any.
#pragma once

#include <vector>

#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/hardware.h"

namespace tailrace {

// An episode that was played, or would be, with its name.
using PlannedEpisode = simulator::ReplayedEpisodes::Record;

struct MachineCosts {
  simulator::Hardware worker = {};  // one rollout worker while all of the run's work
  // Its `step` is what a step takes beside the model: processes, messages, the journal (pilot.h).
  simulator::TrainModel train = {};
  simulator::TransferModel transfer = {};
};

}  // namespace tailrace
