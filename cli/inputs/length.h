// How long a run is, as far as its config and its data say before it begins.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/inputs/resolved_run.h"

namespace tailrace {

// Prompts of an epoch of each dataset, in their order; what env.too_long drops is
// none. 0: the environment draws its tasks without end, or nothing of it is trained. Reads the
// files; throws UserError with its key, as text::read_dataset() does.
std::vector<int64_t> prompts_of_epoch(const ResolvedRun& run);

// The steps that a run has at most: run.steps, or else those of its epochs, the last of which may
// be smaller. Fewer come where prompts are replaced or left out. 0: it has no end, which
// scheduler_config() refuses, or it is supervised training alone. Reads and throws as above.
int64_t most_steps(const ResolvedRun& run);

// "2 epochs of a.jsonl, 1 epoch of b.jsonl": what a run without run.steps goes through.
std::string epochs_text(const ResolvedRun& run);

}  // namespace tailrace
