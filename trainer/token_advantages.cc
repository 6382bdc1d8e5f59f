#include "trainer/token_advantages.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

double clamped_difference(float a, float b) {
  return std::clamp(double{a} - b, -kMaxLogRatio, kMaxLogRatio);
}

// The trained tokens of a trajectory, of all its sequences.
struct TokenColumns {
  std::vector<double> penalties;   // of the reward; empty: none
  std::vector<double> values;      // with a critic
  std::vector<double> advantages;  // token rewards before, advantages behind
};

TokenColumns columns_of(std::span<const TrainSequence> sequences, const PolicyLossConfig& loss) {
  TokenColumns columns;
  const KlOptions& kl = loss.kl;
  const bool penalised = kl.coef != 0 && !kl.in_loss();
  for (const TrainSequence& s : sequences) {
    const auto& other = kl.target == KlTarget::kReference ? s.ref_logprobs : s.behaviour_logprobs;
    TR_CHECK(!penalised || other.size() == s.targets.size(), "{} of {}", other.size(),
             s.targets.size());
    TR_CHECK(!loss.returns.critic || s.old_values.size() == s.targets.size(), "{} values of {}",
             s.old_values.size(), s.targets.size());
    for (size_t k = 0; k < s.targets.size(); ++k) {
      columns.advantages.push_back(s.advantages[k]);
      if (loss.returns.critic) columns.values.push_back(s.old_values[k]);
      // k1 of the weights that the step starts from: the only estimator whose gradient is right as
      // a reward.
      if (penalised)
        columns.penalties.push_back(-kl.coef * clamped_difference(s.old_logprobs[k], other[k]));
    }
  }
  return columns;
}

void settle(std::span<TrainSequence> sequences, const PolicyLossConfig& loss) {
  TokenColumns columns = columns_of(sequences, loss);
  auto& [penalties, values, advantages] = columns;
  std::vector<double> returns(advantages.size());
  if (loss.returns.critic) {
    std::vector<double> rewards = advantages;
    for (size_t t = 0; t < penalties.size(); ++t) rewards[t] += penalties[t];
    // What came behind a cut is not known; the value of the last state that is known stands for it.
    const double behind = sequences.back().goes_on && !values.empty() ? values.back() : 0;
    gae(rewards, values, behind, loss.returns.gamma, loss.returns.lambda, advantages, returns);
  } else if (!penalties.empty()) {
    add_rewards_to_go(penalties, loss.returns.gamma, advantages);
  }
  size_t t = 0;
  for (TrainSequence& s : sequences) {
    s.returns.clear();
    for (float& advantage : s.advantages) {
      advantage = static_cast<float>(advantages[t]);
      if (loss.returns.critic) s.returns.push_back(static_cast<float>(returns[t]));
      ++t;
    }
  }
}

void whiten_batch(TrainBatch& batch) {
  std::vector<double> values;
  for (const TrainSequence& s : batch.sequences)
    for (size_t k = 0; k < s.targets.size(); ++k)
      if (s.is_trained(k)) values.push_back(s.advantages[k]);
  whiten(values);
  auto next = values.begin();
  for (TrainSequence& s : batch.sequences)
    for (size_t k = 0; k < s.targets.size(); ++k)
      if (s.is_trained(k)) s.advantages[k] = static_cast<float>(*next++);
}

}  // namespace

void mask_rejected(TrainBatch& batch, const CorrectionOptions& correction) {
  if (!rejects(correction.kind) || correction.rejected != RejectedTokens::kLeave) return;
  std::vector<double> log_weight, weight;
  for (TrainSequence& s : batch.sequences) {
    log_weight.clear();
    for (size_t k = 0; k < s.targets.size(); ++k)
      log_weight.push_back(clamped_difference(s.old_logprobs[k], s.behaviour_logprobs[k]));
    weight.resize(log_weight.size());
    correction_weights(correction, log_weight, s.turns, weight);
    s.mask.resize(s.targets.size(), 1);
    for (size_t k = 0; k < weight.size(); ++k) {
      if (weight[k] != 0 || s.mask[k] == 0) continue;
      s.mask[k] = 0;
      --batch.trajectory_tokens[static_cast<size_t>(s.trajectory)];
    }
  }
}

void settle_advantages(TrainBatch& batch, const PolicyLossConfig& loss) {
  const bool penalised = loss.kl.coef != 0 && !loss.kl.in_loss();
  const std::span sequences(batch.sequences);
  if (loss.returns.critic || penalised) {
    for (size_t begin = 0; begin < sequences.size();) {
      size_t end = begin + 1;
      while (end < sequences.size() && sequences[end].trajectory == sequences[begin].trajectory)
        ++end;
      settle(sequences.subspan(begin, end - begin), loss);
      begin = end;
    }
  }
  if (loss.returns.whiten) whiten_batch(batch);
}

}  // namespace tailrace
