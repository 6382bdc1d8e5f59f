// The algorithm of a run in full, for a person: what a preset, a file, the command line and the
// defaults come to.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "cli/config/options.h"
#include "core/config/yaml_config.h"

namespace tailrace {

// A line for each axis, in the order of the loss: preset, advantage, ratio, surrogate, clips,
// correction, aggregation, KL. Each value stands by its key below `algo`, with the layer that it
// comes from behind it: "clip_low 0.2 (preset dr_grpo)". A key that has no effect is left out.
std::vector<std::string> describe_algorithm(const RunOptions& options, const ConfigKeys& keys);

}  // namespace tailrace
