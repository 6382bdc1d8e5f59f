// The columns of PolicyLossInput of a few sequences, side by side.
//
// Thread: caller locks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/packed_forward.h"

namespace tailrace {

struct LossColumns {
  // After StepScores::prepare().
  explicit LossColumns(std::span<const TrainSequence> sequences);

  // The loss input of these sequences and of their forward pass's output; views of both.
  PolicyLossInput input(const PackedForward::Output& output) const;

  // [targets]
  std::vector<float> old_logprob, behaviour_logprob, ref_logprob, advantage;
  std::vector<int32_t> sequence, turn, trajectory;
  std::vector<uint8_t> mask, positive;
};

}  // namespace tailrace
