// The limits on a trajectory that a trainer takes. Asked of a worker's result before it counts as a
// sample, and of a batch before it is trained on.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "core/trajectory/trajectory.h"

namespace tailrace {

// The limits of a run; a limit that is left out is none. No log-probability is above 0 in any.
struct BodyLimits {
  int64_t vocab_size = std::numeric_limits<int64_t>::max();
  int64_t max_context_tokens = std::numeric_limits<int64_t>::max();  // inherited ones included
  // A history is rewritten to be answered: one for each answer, and one that several continue.
  int64_t max_segments = std::numeric_limits<int64_t>::max();
  bool needs_sets = false;  // training: truncated sampling says what each token was drawn from
  // Training: the routers whose choices it carries; all 0: it carries none.
  std::optional<ExpertShape> experts = {};
  // The run's: its temperature and truncation. Lengths and stops are the environment's.
  std::optional<SamplingParams> sampling = {};
  std::optional<SamplingParams> eval_sampling = {};  // of held-out prompts; none: the same
  bool greedy_member = false;  // the run's: one member of each group is sampled at temperature 0
};

// Why a trajectory without a fault (find_fault) is not taken, to be read behind its name
// ("holds token 9; ..."). Nothing: it is.
std::optional<std::string> find_unfit(const Trajectory& trajectory, const BodyLimits& limits);

}  // namespace tailrace
