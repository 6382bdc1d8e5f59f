// Scores evidence with a verifier by name: what reward workers, `eval` and demonstrations share.
//
// Thread: any.
#pragma once

#include <string>

#include "core/base/result.h"
#include "reward/registry.h"
#include "reward/verifier.h"

namespace tailrace {

// A gradient is a sum of rewards times numbers of a model, in float32, which ends at 3.4e38: with
// much larger rewards it is not finite, and nothing is learned.
constexpr double kLargestReward = 1e30;
// Neither NaN nor infinite nor larger, of either sign.
constexpr bool is_reward(double value) {
  return value >= -kLargestReward && value <= kLargestReward;
}
// "its reward is 1e+308, which ...", for a number that is none.
std::string no_reward(double value);

// A Failure when no score came out of it: no such verifier, evidence that it cannot read, an
// exception, a reward that is_reward() refuses. It names the verifier. Never throws, and takes as
// long as the verifier, which is told its budget.
Result<Score> judge(const VerifierRegistry& verifiers, const std::string& verifier,
                    const std::string& evidence, Time budget);

}  // namespace tailrace
