// Distillation from given rows (supervised distillation, GKD off the policy, 2306.13649): the
// student learns, at the tokens of a row that count, from the likeliest tokens of a frozen teacher
// there. Rows and batches are those of supervised training.
//
// A teacher never changes, so all rows are scored once, before the first update, into a file that
// updates read (teacher_file.h).
//
// With ranks (PolicyTrainer::join) all of them make the same calls, and updates have the same bits.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "trainer/distillation_pass.h"
#include "trainer/options.h"
#include "trainer/policy_trainer.h"
#include "trainer/row_task.h"
#include "trainer/sft.h"
#include "trainer/teacher_file.h"

namespace tailrace {

class DistillTask : public RowTask {
 public:
  // Resets the trainer's optimizer. Borrows the trainer, which is on the CPU, and `stream`, which
  // is the trainer's. `held_out`: of evaluate(); may be empty.
  DistillTask(const Stream& stream, PolicyTrainer& trainer, const DistillStageOptions& options,
              std::vector<SftRow> rows, std::vector<SftRow> held_out, uint64_t seed);

  // What the teacher is asked: the rows, then those that are held out.
  size_t num_rows() const { return rows_.size(); }
  const SftRow& row(size_t index) const { return rows_[index]; }
  TeacherFileHead head() const;
  // Before the first update or evaluation: the answers, as head() asks for them.
  void set_scores(TeacherFile scores) { scores_ = std::move(scores); }

  // distill/eval_loss, distill/eval_log_ratio and, of a divergence, what it says of the supports.
  MetricList evaluate() override;

 private:
  MetricList update_rows(std::span<const size_t> rows, double done) override;
  std::vector<PackedSequence> views(std::span<const size_t> rows) const;
  std::vector<TeacherScores> scores_of(std::span<const size_t> rows) const;
  size_t num_targets(std::span<const size_t> rows) const;

  Stream stream_;
  PolicyTrainer& trainer_;
  DistillStageOptions options_;
  std::vector<SftRow> rows_;           // those that are held out stand at the end
  size_t num_trained_;                 // of them
  std::vector<int64_t> first_target_;  // of each row, by its number in the file
  std::optional<TeacherFile> scores_;
};

}  // namespace tailrace
