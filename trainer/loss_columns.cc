#include "trainer/loss_columns.h"

namespace tailrace {

LossColumns::LossColumns(std::span<const TrainSequence> sequences) {
  auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  int32_t index = 0;
  for (const TrainSequence& s : sequences) {
    append(old_logprob, s.old_logprobs);
    append(behaviour_logprob, s.behaviour_logprobs);
    append(ref_logprob, s.ref_logprobs);
    append(advantage, s.advantages);
    append(turn, s.turns);
    sequence.insert(sequence.end(), s.targets.size(), index++);
    trajectory.insert(trajectory.end(), s.targets.size(), s.trajectory);
    positive.insert(positive.end(), s.targets.size(), s.positive);
    for (size_t k = 0; k < s.targets.size(); ++k) mask.push_back(s.is_trained(k));
  }
}

PolicyLossInput LossColumns::input(const PackedForward::Output& output) const {
  return {.logprob = output.logprob,
          .old_logprob = old_logprob,
          .behaviour_logprob = behaviour_logprob,
          .ref_logprob = ref_logprob,
          .entropy = output.entropy,
          .advantage = advantage,
          .mask = mask,
          .sequence = sequence,
          .turn = turn,
          .trajectory = trajectory,
          .positive = positive};
}

}  // namespace tailrace
