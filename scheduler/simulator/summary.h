// The results of a number of simulated steps.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

// Without steps all are 0. A median of an even number is the mean of the two in the middle.
struct RunSummary {
  int64_t steps = 0;
  double seconds = 0;  // from the version before the first step to that of the last
  double step_mean = 0, step_median = 0;  // seconds
  double rollout_median = 0;              // seconds of a step until the trainer had all of it
  double train_median = 0;                // and from then on until its version was published
  int64_t samples = 0, tokens = 0;        // of all steps
  double samples_per_step = 0, tokens_per_step = 0;
  double tokens_per_s = 0, tokens_per_sample = 0;
  int64_t longest = 0;                           // tokens of a sample
  double staleness_mean = 0, staleness_max = 0;  // of samples, in versions
  double old_tokens = 0;                         // share that earlier versions sampled
};

RunSummary summary_of(std::span<const StepRecord> steps);

}  // namespace tailrace::simulator
