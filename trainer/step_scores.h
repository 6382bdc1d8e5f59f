// Scores of a step's tokens by the weights that it starts from, and by those of the reference
// policy: old and reference log-probabilities, old values, and the advantages made of them.
//
// A token that the current version sampled in the trainer's own numerics class has its l_old
// recorded, because rule 3 makes them the same bits. Tokens of older versions or of another class
// are scored with the current weights.
//
// Thread: one at a time. With ranks all of them call the same functions; each computes a share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/device.h"
#include "trainer/batch.h"
#include "trainer/critic.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/packed_forward.h"
#include "trainer/trained_weights.h"

namespace tailrace {

class StepScores {
 public:
  // Borrows all.
  StepScores(const Stream& stream, PackedForward& forward, TrainedWeights& weights,
             const GradientTree& tree)
      : stream_(stream), forward_(forward), weights_(weights), tree_(tree) {}

  // Log-probabilities of each sequence's targets, natural log, in the order given.
  std::vector<std::vector<float>> score(std::span<const PackedSequence> sequences);

  // Sets old and reference log-probabilities, and with a critic the old values, of all sequences,
  // and then what the loss makes of them (token_advantages.h). `version`: of the current weights.
  void prepare(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss,
               const Critic* critic);

  // How far the updates of a step have moved the policy, by a forward pass over drift_sample(): at
  // most one micro-batch. Reads the weights alone.
  double measure_drift(const TrainBatch& batch);

 private:
  // Scores of all targets. `critic`: hears of the passes and gives `values`; null: nobody does.
  struct Scores {
    std::vector<std::vector<float>> logprobs, values;
  };
  Scores score(const PackedWeights& weights, std::span<const PackedSequence> sequences,
               const Critic* critic);
  void score_old(TrainBatch& batch, int64_t version, const Critic* critic);
  void score_reference(TrainBatch& batch);

  Stream stream_;
  PackedForward& forward_;
  TrainedWeights& weights_;
  const GradientTree& tree_;
};

}  // namespace tailrace
