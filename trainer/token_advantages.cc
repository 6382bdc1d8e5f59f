#include "trainer/token_advantages.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "trainer/loss/policy_loss.h"

namespace tailrace {
namespace {

double clamped_difference(float a, float b) {
  return std::clamp(double{a} - b, -kMaxLogRatio, kMaxLogRatio);
}

// The KL penalty on the reward of each trained token of a trajectory. k1 of the weights
// that the step starts from: the only estimator whose gradient is right as a reward.
std::vector<double> penalties_of(std::span<const TrainSequence> trajectory, const KlOptions& kl) {
  std::vector<double> penalties;
  for (const TrainSequence& s : trajectory) {
    const auto& other = kl.target == KlTarget::kReference ? s.ref_logprobs : s.behaviour_logprobs;
    TR_CHECK(!kl.in_reward() || other.size() == s.targets.size(), "{} of {}", other.size(),
             s.targets.size());
    for (size_t k = 0; k < s.targets.size(); ++k)
      penalties.push_back(
          kl.in_reward() ? -kl.coef * clamped_difference(s.old_logprobs[k], other[k]) : 0);
  }
  return penalties;
}

template <class Function>
void for_each_token(std::span<TrainSequence> trajectory, const Function& function) {
  size_t t = 0;
  for (TrainSequence& s : trajectory)
    for (size_t k = 0; k < s.targets.size(); ++k) function(s, k, t++);
}

// Segments of a trajectory are one line of time, in their order.
std::vector<std::span<TrainSequence>> trajectories_of(std::span<TrainSequence> sequences) {
  std::vector<std::span<TrainSequence>> trajectories;
  for (size_t begin = 0; begin < sequences.size();) {
    size_t end = begin + 1;
    while (end < sequences.size() && sequences[end].trajectory == sequences[begin].trajectory)
      ++end;
    trajectories.push_back(sequences.subspan(begin, end - begin));
    begin = end;
  }
  return trajectories;
}

// By what follows a token, or against values.
void settle_tokens(std::span<TrainSequence> trajectory, const ReturnOptions& options,
                   const KlOptions& kl) {
  const bool critic = options.kind == ReturnKind::kGae;
  const std::vector<double> penalties = penalties_of(trajectory, kl);
  std::vector<double> advantages(penalties.size()), returns(penalties.size());
  if (options.kind == ReturnKind::kStand) {
    for_each_token(trajectory,
                   [&](TrainSequence& s, size_t k, size_t t) { advantages[t] = s.advantages[k]; });
    add_rewards_to_go(penalties, options.gamma, advantages);
  } else {
    std::vector<double> rewards = penalties, values;
    for_each_token(trajectory, [&](TrainSequence& s, size_t k, size_t t) {
      rewards[t] += s.advantages[k];
      if (critic) values.push_back(s.old_values.at(k));
    });
    if (critic) {
      // Rewards behind a cut are not known; the value of the last state that is known stands for
      // them.
      const double behind = trajectory.back().goes_on && !values.empty() ? values.back() : 0;
      gae(rewards, values, behind, options.gamma, options.lambda, advantages, returns);
    } else {
      add_rewards_to_go(rewards, options.gamma, advantages);
    }
  }
  for (TrainSequence& s : trajectory) s.returns.clear();
  for_each_token(trajectory, [&](TrainSequence& s, size_t k, size_t t) {
    s.advantages[k] = static_cast<float>(advantages[t]);
    if (critic) s.returns.push_back(static_cast<float>(returns[t]));
  });
}

// By what the penalty of a whole sample is beyond that of its group.
void settle_samples(std::span<TrainSequence> group, ReturnKind kind, const KlOptions& kl) {
  const auto trajectories = trajectories_of(group);
  const auto n = static_cast<double>(trajectories.size());
  // A group of one has no other members to compare its penalty with.
  if (n < 2) return;
  std::vector<double> sums;
  for (const auto& trajectory : trajectories) {
    double sum = 0;
    for (double penalty : penalties_of(trajectory, kl)) sum += penalty;
    sums.push_back(sum);
  }
  const double mean = mean_std(sums).mean;
  // x - mean of the others = n / (n - 1) (x - mean of all), as for the rewards.
  const double scale = kind == ReturnKind::kLeaveOneOut ? n / (n - 1) : 1;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    for_each_token(trajectories[i], [&](TrainSequence& s, size_t k, size_t) {
      s.advantages[k] = static_cast<float>(s.advantages[k] + scale * (sums[i] - mean));
    });
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

// Correction weights of the targets of a sequence by algo.correction; `all`: also of masked ones.
std::vector<double> correction_of(const TrainSequence& s, const CorrectionOptions& correction,
                                  bool all) {
  std::vector<double> log_weight;
  std::vector<int32_t> turns;
  for (size_t k = 0; k < s.targets.size(); ++k) {
    if (!all && !s.is_trained(k)) continue;
    log_weight.push_back(clamped_difference(s.old_logprobs[k], s.behaviour_logprobs[k]));
    turns.push_back(s.turns[k]);
  }
  std::vector<double> weight(log_weight.size());
  correction_weights(correction, log_weight, turns, weight);
  return weight;
}

}  // namespace

void mask_rejected(TrainBatch& batch, const CorrectionOptions& correction) {
  if (!rejects(correction.kind) || correction.rejected != RejectedTokens::kLeave) return;
  for (TrainSequence& s : batch.sequences) {
    const std::vector<double> weight = correction_of(s, correction, /*all=*/true);
    s.mask.resize(s.targets.size(), 1);
    for (size_t k = 0; k < weight.size(); ++k) {
      if (weight[k] != 0 || s.mask[k] == 0) continue;
      s.mask[k] = 0;
      // A token that is left out is no part of any denominator either
      // (algo.correction.rejected=leave).
      --batch.trajectory_tokens[static_cast<size_t>(s.trajectory)];
    }
  }
}

double mean_correction(const TrainBatch& batch, const Minibatch& minibatch,
                       const CorrectionOptions& correction) {
  double sum = 0;
  int64_t tokens = 0;
  for (size_t i = minibatch.begin; i < minibatch.end; ++i) {
    const std::vector<double> weights =
        correction_of(batch.sequences[i], correction, /*all=*/false);
    for (double weight : weights) sum += weight;
    tokens += std::ssize(weights);
  }
  const double mean = sum / static_cast<double>(tokens);
  // All weights 0: the tokens have no loss, and any divisor but 0 keeps it so.
  return mean > 0 ? mean : 1;
}

void settle_advantages(TrainBatch& batch, const KlOptions& kl) {
  const std::span sequences(batch.sequences);
  const ReturnKind kind = batch.returns.kind;
  const bool by_sample = kind == ReturnKind::kCentred || kind == ReturnKind::kLeaveOneOut;
  if (by_sample && kl.in_reward()) {
    for (size_t g = 0; g + 1 < batch.group_offsets.size(); ++g) {
      const auto begin = static_cast<size_t>(batch.group_offsets[g]);
      settle_samples(
          sequences.subspan(begin, static_cast<size_t>(batch.group_offsets[g + 1]) - begin), kind,
          kl);
    }
  } else if (is_of_tokens(kind) || kl.in_reward()) {
    for (const auto& trajectory : trajectories_of(sequences))
      settle_tokens(trajectory, batch.returns, kl);
  }
  if (batch.returns.whiten) whiten_batch(batch);
}

void add_teacher(TrainBatch& batch, const DistillOptions& distill) {
  if (!distill.has_teacher() || distill.kind != DistillLoss::kPolicyGradient) return;
  for (const auto& trajectory : trajectories_of(batch.sequences)) {
    std::vector<double> behaviour, teacher, advantages;
    for_each_token(trajectory, [&](TrainSequence& s, size_t k, size_t) {
      behaviour.push_back(s.recorded_logprobs[k]);
      teacher.push_back(s.teacher_logprobs.at(k));
      advantages.push_back(distill.rewards ? s.advantages[k] : 0);
    });
    distill_advantages(distill, behaviour, teacher, advantages);
    for_each_token(trajectory, [&](TrainSequence& s, size_t k, size_t t) {
      s.advantages[k] = static_cast<float>(advantages[t]);
    });
  }
}

}  // namespace tailrace
