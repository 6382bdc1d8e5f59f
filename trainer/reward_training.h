// Training of a reward model on preferences: its score of the chosen completion learns to stand
// above that of the rejected one,
//
//   L = -log sigmoid(r_c - r_r - margin) + centering (r_c + r_r)^2     (2312.09244)
//
// The model is a policy's body with a head of one row (core/model/reward_head.h): the score of a
// text is the hidden state of its last token, after the final norm, times the head. The head begins
// at 0, so that the first loss is log 2 where there is no margin.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/options.h"
#include "trainer/policy_trainer.h"
#include "trainer/preference_rows.h"
#include "trainer/row_task.h"

namespace tailrace {

// Rows as the texts whose scores are compared: two of each, the chosen one and the rejected one.
struct RewardPairs {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<int32_t> ends;    // of each, behind the token that is scored
  std::vector<double> margins;  // of each row

  // `padding`: the id that fills rows up, which is never the scored one (scored_token()); -1: none.
  RewardPairs(const std::vector<PreferenceRow>& rows, int64_t padding);
  std::vector<PackedSequence> views(std::span<const size_t> rows) const;
};

class RewardModelTask : public RowTask {
 public:
  // Resets the trainer's optimizer. Borrows the trainer, which is of a reward model on the CPU. All
  // rows are pairs. `held_out`: of evaluate(); may be empty. `padding`: of the model's folder
  // (reward_padding()); -1: none.
  RewardModelTask(PolicyTrainer& trainer, const RewardModelOptions& options,
                  const std::vector<PreferenceRow>& rows,
                  const std::vector<PreferenceRow>& held_out, uint64_t seed, int64_t padding = -1);

  // reward_model/eval_loss and eval_accuracy, eval_margin, ...: TRL's names.
  MetricList evaluate() override;

 private:
  MetricList update_rows(std::span<const size_t> rows, double done) override;
  std::span<const float> head();

  PolicyTrainer& trainer_;
  RewardModelOptions options_;
  RewardPairs train_, held_out_;
};

}  // namespace tailrace
