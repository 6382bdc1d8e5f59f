// A frozen model that scores given tokens, as the teacher of a distillation does: its packed
// weights, and what a prefill takes. A score does not depend on what else is scored.
//
// Thread: one at a time, which has the stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/model/model.h"
#include "core/model/model_config.h"
#include "core/model/packed_weights.h"
#include "core/model/placement.h"
#include "core/model/sequence_scorer.h"
#include "kernels/base/device.h"

namespace tailrace {

struct FrozenModel {
  std::string name = {};           // in `policies`
  std::filesystem::path dir = {};  // its weights
  ModelConfig model = {};          // of the vocabulary of what it scores
};

class FrozenScorer {
 public:
  // Reads and packs the weights. `max_tokens`: of a sequence, at most. Throws UserError as
  // load_frozen_base().
  FrozenScorer(const FrozenModel& of, const Elements& compute, const Stream& stream,
               int64_t max_tokens);

  // As SequenceScorer, with no number above 0. Throws UserError where one is not finite.
  SequenceScores score(const ScoreRequest& request);

  struct Bytes {
    int64_t weights = 0, keys_and_values = 0, workspace = 0;
    int64_t all() const { return weights + keys_and_values + workspace; }
  };
  static Bytes bytes(const FrozenModel& of, const Elements& compute, Device device, int threads,
                     int64_t max_tokens);

 private:
  FrozenModel of_;
  Model model_;
  std::shared_ptr<const PackedWeights> weights_;
  SequenceScorer scorer_;
};

}  // namespace tailrace
