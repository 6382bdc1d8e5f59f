// The policy loss as kernels/ops/policy_gradient.h computes it on a GPU: what the host prepares for
// it, and what its sums mean. policy_loss() is the same on the CPU.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/policy_gradient.h"
#include "trainer/loss/policy_loss.h"

namespace tailrace {

PolicyRule policy_rule(const PolicyLossConfig& config);

// Log-probabilities of the other policy of the KL term; empty: there is none.
std::span<const float> kl_logprob(const PolicyLossConfig& config, const PolicyLossInput& input);

// The columns of PolicyTokens that are not the caller's own.
struct GradientColumns {
  std::vector<double> weight, correction;
  std::vector<uint8_t> flags;  // without kCurrentToken
  std::vector<int32_t> turns, sequence_turns;
  PolicyLossStats stats;  // of the corrections: the part that no current weights are needed for
};
// Does not read `input`'s logprob and entropy.
GradientColumns gradient_columns(const PolicyLossConfig& config, const PolicyLossInput& input,
                                 const LossCounts& counts);

// The result of the kernel's sums; GradientColumns::stats are beside it.
PolicyLossResult policy_result(const PolicyLossConfig& config, const PolicySums& sums);

}  // namespace tailrace
