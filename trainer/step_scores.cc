#include "trainer/step_scores.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"
#include "trainer/step_report.h"
#include "trainer/token_advantages.h"

namespace tailrace {
namespace {

// [targets] of each sequence.
std::vector<std::vector<float>> by_sequence(std::span<const PackedSequence> sequences,
                                            std::span<const float> targets) {
  std::vector<std::vector<float>> result;
  for (const PackedSequence& sequence : sequences) {
    const auto own = targets.first(sequence.targets.size());
    result.emplace_back(own.begin(), own.end());
    targets = targets.subspan(own.size());
  }
  return result;
}

bool is_fresh(const TrainSequence& sequence, int64_t version) {
  for (size_t k = 0; k < sequence.versions.size(); ++k)
    if (!sequence.is_fresh(k, version)) return false;
  return true;
}

}  // namespace

StepScores::Scores StepScores::score(const PackedWeights& weights,
                                     std::span<const PackedSequence> sequences,
                                     const Critic* critic) {
  // Each rank scores its part of the sequences, and gather_values() puts the parts together in
  // order.
  const auto [first, last] = tree_.own_share(sequences);
  const auto own = sequences.subspan(first, last - first);
  std::vector<float> logprobs, values;
  for (auto [begin, end] : pack(own, forward_.limits())) {
    const PackedForward::Output part =
        forward_.forward(stream_, weights, own.subspan(begin, end - begin), {});
    logprobs.insert(logprobs.end(), part.logprob.begin(), part.logprob.end());
    if (critic != nullptr)
      std::ranges::move(critic->values(part.hidden), std::back_inserter(values));
  }
  Scores scores;
  if (critic != nullptr)
    scores.values = by_sequence(sequences, tree_.gather_values(std::move(values)));
  scores.logprobs = by_sequence(sequences, tree_.gather_values(std::move(logprobs)));
  return scores;
}

std::vector<std::vector<float>> StepScores::score(std::span<const PackedSequence> sequences) {
  return score(weights_.packed(), sequences, nullptr).logprobs;
}

void StepScores::prepare(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss,
                         const Critic* critic) {
  // The order matters: rejection needs the old log-probabilities, and advantages need all three (a
  // KL penalty in the reward, values, and the mask for whitening).
  score_old(batch, version, critic);
  if (loss.kl.needs_reference()) score_reference(batch);
  mask_rejected(batch, loss.correction);
  settle_advantages(batch, loss.kl);
  add_teacher(batch, loss.distill);
}

void StepScores::score_old(TrainBatch& batch, int64_t version, const Critic* critic) {
  std::vector<PackedSequence> unknown;
  std::vector<TrainSequence*> owners;
  for (TrainSequence& sequence : batch.sequences) {
    sequence.old_logprobs = sequence.recorded_logprobs;
    // No second pass for what this version sampled in our class: rollout's bits are the trainer's.
    if (critic == nullptr && is_fresh(sequence, version)) continue;
    unknown.push_back(sequence.packed());
    owners.push_back(&sequence);
  }
  Scores scores = score(weights_.packed(), unknown, critic);
  for (size_t i = 0; i < unknown.size(); ++i) {
    TrainSequence& sequence = *owners[i];
    if (critic != nullptr) sequence.old_values = std::move(scores.values[i]);
    for (size_t k = 0; k < sequence.versions.size(); ++k) {
      // These only: the others have theirs. (An install drops all KV, so older tokens in front do
      // not change what the present version samples behind them.)
      if (!sequence.is_fresh(k, version)) sequence.old_logprobs[k] = scores.logprobs[i][k];
    }
  }
}

void StepScores::score_reference(TrainBatch& batch) {
  const PackedWeights* reference = weights_.reference();
  TR_CHECK(reference != nullptr, "a KL term against a reference needs set_reference()");
  std::vector<PackedSequence> all;
  for (const TrainSequence& sequence : batch.sequences) {
    all.push_back(sequence.packed());
    all.back().choices = {};  // its routers are others
  }
  // Once a step and not once an update: neither the reference nor the tokens change in between.
  Scores scores = score(*reference, all, nullptr);
  for (size_t i = 0; i < all.size(); ++i)
    batch.sequences[i].ref_logprobs = std::move(scores.logprobs[i]);
}

double StepScores::measure_drift(const TrainBatch& batch) {
  const std::vector<size_t> sample = drift_sample(batch, forward_.limits().max_tokens);
  std::vector<PackedSequence> sequences;
  for (const size_t index : sample) sequences.push_back(batch.sequences[index].packed());
  return drift_of(batch, sample, score(sequences));
}

}  // namespace tailrace
