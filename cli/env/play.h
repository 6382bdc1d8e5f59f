// An episode that a person plays in the terminal.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "core/base/result.h"
#include "reward/registry.h"
#include "sandbox/environment.h"

namespace tailrace {

// For a person, or for a program: one JSON object once the episode is over.
enum class PlayedAs : uint8_t { kText, kJson };

// Writes each observation, reads a line, and sends it with the environment's stop string behind it;
// at the end, the reward and the metrics. The end of the input cuts the episode. A Failure of the
// environment ends it, and so does a reward that is no number, which a run refuses.
Result<void> play_by_hand(sandbox::Environment& environment, const sandbox::Task& task,
                          const VerifierRegistry& verifiers, std::istream& in, std::ostream& out,
                          PlayedAs as = PlayedAs::kText);

}  // namespace tailrace
