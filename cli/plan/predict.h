// The time of a step, from what its parts cost and how long its episodes are.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/plan/costs.h"
#include "cli/run/options.h"

namespace tailrace {

// Seconds of a step, one after the other; they add up to `step`.
struct StepTime {
  double install = 0;      // the weights of the version before reach the workers
  double generate = 0;     // until the last sample
  double environment = 0;  // of `generate`, what nothing was generated in
  double reward = 0;       // behind the last sample
  double train = 0;
  double publish = 0;
  double beside = 0;  // the model: processes, messages, the journal
  double step = 0;
  // Share of the workers' room that is empty while they generate.
  double idle_share = 0;
  double sampled_tokens = 0, trained_tokens = 0;
};

// What one worker takes for these episodes, which begin at once. `turn_seconds`: of its thread, a
// turn.
struct Played {
  double seconds = 0;
  double waiting = 0;           // of them, for environments alone
  double sequence_seconds = 0;  // sum over episodes, from begin to end
};
Played play_time(const simulator::Hardware& worker, double turn_seconds, int64_t max_sequences,
                 std::span<const PlannedEpisode> episodes);

StepTime predict_step(const RunOptions& options, const MachineCosts& costs,
                      std::span<const PlannedEpisode> episodes);
// Each part by itself; not empty.
StepTime mean(std::span<const StepTime> steps);

// The episodes dealt to `workers`, whole groups.
std::vector<std::vector<PlannedEpisode>> deal_groups(std::span<const PlannedEpisode> episodes,
                                                     int64_t workers);

}  // namespace tailrace
