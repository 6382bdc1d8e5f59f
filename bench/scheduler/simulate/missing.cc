// Published rows that do not count, each with the mechanism that the scheduler lacks or what nobody
// published of the workload. Nothing stands in for either.
#include "bench/scheduler/simulate/experiment.h"

namespace tailrace::simulate {

const std::vector<Missing>& missing() {
  static const std::vector<Missing> kMissing = {
      {"9, 12-14, 20, 21", "RollPacker end to end", "reward scheduler, planner and stream trainer"},
      {"10", "RollPacker, + reward scheduler", "judge on the GPUs of the actor"},
      {"11, 17, 18", "RollPacker, + planner", "tensor parallelism that changes by kind of round"},
      {"15, 16", "RollPacker, stream trainer", "rollout GPUs that train within a step"},
      {"19", "RollPacker, adaptive timeout", "time limit of a verifier learned from its answers"},
      {"32", "RollArt, redundant environments", "no published latency of GEM-math to draw from"},
      {"34", "RollArt, ladder", "mixed hardware, serverless rewards"},
      {"47", "verl, hybrid replicas", "trainer GPUs that sample (co-serving)"},
      {"48-51", "Seer", "chunks of a response that move between engines, speculative decoding"},
      {"52", "StreamRL, dispatch", "lengths predicted by a model"},
      {"26-30", "ROLL Flash, mechanisms", "batch sizes alone are known, at second hand"},
      {"37, 40, 44", "APRIL, AsyncFlow, verl", "other settings; stage times are not published"},
      {"41, 42", "AReaL, undetermined", "cost of training, lengths: one baseline cell for both"},
      {"-", "Laminar over AReaL, 5.48x", "repacking of nearly idle replicas"},
  };
  return kMissing;
}

}  // namespace tailrace::simulate
