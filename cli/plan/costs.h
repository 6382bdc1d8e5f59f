// What a run costs on this machine, as numbers: measured by calibrate(), used by predict_step().
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/hardware.h"

namespace tailrace {

// An episode of a step, as it was recorded or is expected.
struct PlannedEpisode {
  MemberId member;
  simulator::Episode episode;
  bool trained = true;  // its group has a signal, so that its tokens go through the trainer
};

int64_t tokens_of(const simulator::Episode& episode);  // prompt and answers included
int64_t sampled_tokens_of(const simulator::Episode& episode);

// Of one step or of several: whole groups, in the order of their batches.
struct PlannedEpisodes {
  std::vector<PlannedEpisode> episodes;
  std::string source;  // where the lengths come from, for a person
};

struct MachineCosts {
  // Of one rollout worker while all of the run's work.
  simulator::Hardware worker = {};
  // Of a worker's thread beside the engine: environment, texts, messages.
  double turn_seconds = 0;
  // Of a step, beside all that its model computes: processes, messages, the journal (pilot.h).
  double beside_seconds = 0;
  simulator::TrainModel train = {};
  simulator::TransferModel transfer = {};
};

}  // namespace tailrace
