// Training on preferences (Rafailov et al. 2305.18290 and its relatives, loss/preference.h): of two
// completions of a prompt the chosen one becomes likelier than the rejected one, against the policy
// that the training begins with.
//
// That reference is the weights as they are when the training begins. Its log-probabilities of all
// completions are computed once, before the first update, and kept: no second copy of the weights
// is held, and an update needs no pass of the reference.
//
// Both halves of a pair are always in one micro-batch, where their prompt is computed once.
//
// Unpaired rows (kto) stand against the mean divergence z of mismatched rows: the prompt of each
// row of an update with the completion of the next row of the file that has another prompt
// (2402.01306). z is of a whole update, and has no gradient.
//
// With ranks (PolicyTrainer::join) all of them make the same calls, and updates have the same bits.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "trainer/options.h"
#include "trainer/packed_forward.h"
#include "trainer/policy_trainer.h"
#include "trainer/preference_rows.h"
#include "trainer/row_task.h"

namespace tailrace {

// Rows as sequences whose log-probabilities are compared: two of each row, its chosen and its
// rejected completion; or, of an unpaired row, its completion and the mismatch of z.
struct PreferenceSequences {
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<int32_t> targets;  // positions of its completion
  };
  std::vector<Sequence> sequences;
  std::vector<uint8_t> desirable;  // of each row that is unpaired
  std::vector<double> reference;   // of each sequence, by the reference; empty: there is none

  // `max_tokens`: of a sequence.
  PreferenceSequences(const std::vector<PreferenceRow>& rows, int64_t max_tokens);
  PackedSequence view(size_t sequence) const;
  std::vector<PackedSequence> views() const;
};

// Tokens of the longest pair, its prompt counted twice: both halves go into one pass, which must
// hold them (train.microbatch_tokens).
int64_t most_pair_tokens(const std::vector<PreferenceRow>& rows);

class PreferenceTask : public RowTask {
 public:
  // Resets the trainer's optimizer. Borrows the trainer. `held_out`: of evaluate(); may be empty.
  PreferenceTask(PolicyTrainer& trainer, const PreferenceOptions& options,
                 const std::vector<PreferenceRow>& rows, const std::vector<PreferenceRow>& held_out,
                 uint64_t seed);

  // The log-probabilities of all completions by the weights as they are: two of each row and of
  // each held-out row. A loss with a reference needs those from before the first update ever.
  // Nothing: `stops` said so, which is asked between two passes; empty: nobody stops it.
  std::optional<std::vector<double>> score_reference(const std::function<bool()>& stops = {});
  void set_reference(std::vector<double> logprobs);
  size_t num_reference() const;

  // preference/eval_loss, and TRL's names behind eval_.
  MetricList evaluate() override;

 private:
  MetricList update_rows(std::span<const size_t> rows, double done) override;
  // Appends the sum of each one's log-probabilities. False: it was stopped.
  bool sums_of(std::span<const PackedSequence> sequences, const std::function<bool()>& stops,
               std::vector<double>& sums);
  // z: of the mismatches of these rows.
  double mean_divergence(const PreferenceSequences& from, std::span<const size_t> rows);

  PolicyTrainer& trainer_;
  PreferenceOptions options_;
  PreferenceSequences train_, held_out_;
};

}  // namespace tailrace
