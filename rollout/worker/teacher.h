// A teacher in a rollout worker: frozen weights beside those that sample, which score each finished
// sample. They take turns with the engine on the worker's device and threads.
//
// A score is the log-probability of a sampled token behind the same context, of the distribution
// that was sampled from (its temperature, no truncation). It does not depend on what else is
// scored, so a sample that another worker plays again has the same bits.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/placement.h"
#include "core/run/memory_need.h"
#include "core/trajectory/trajectory.h"
#include "core/weights/frozen_scorer.h"
#include "kernels/base/device.h"

namespace tailrace {

struct TeacherConfig {
  FrozenModel model = {};
  int64_t top_k = 0;  // of its likeliest tokens that go along; 0: none
};

class Teacher {
 public:
  // Reads and packs the weights. `max_tokens`: of a context, at most. Throws UserError as
  // FrozenScorer.
  Teacher(const TeacherConfig& config, const Elements& compute, const Stream& stream,
          int64_t max_tokens);

  // Sets the teacher's scores of all that was sampled. Throws UserError, where one is not finite.
  void score(Trajectory& trajectory);

  static std::vector<MemoryItem> memory(const TeacherConfig& config, const Elements& compute,
                                        Device device, int threads, int64_t max_tokens);

 private:
  int64_t top_k_;
  FrozenScorer scorer_;
};

}  // namespace tailrace
