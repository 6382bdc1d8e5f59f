// Training of a student on what a teacher said of given sequences (loss/distillation.h): the loss
// of a pass, beside the update that PolicyTrainer::row_update() makes of it.
//
//   coef * mean over all targets of the loss of a target
//
// A divergence reads the student's log-probabilities of the k tokens of a support, so the pass has
// the head to itself: it makes the logits of some rows at a time, and of them the loss, the
// gradient in the logits, and the gradients of hidden states and of the head.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/generate.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "trainer/loss/distillation.h"
#include "trainer/loss_pass.h"
#include "trainer/policy_trainer.h"

namespace tailrace {

// What a teacher said of the targets of one sequence: log-probabilities, natural log, of the
// temperature of the sequence.
struct TeacherScores {
  std::vector<float> logprobs;  // [targets] of the target itself
  // [targets + 1] Where the support of each target begins among `ids`, and the end of the last; at
  // least one token each. Empty where the loss has no support (needs_support()).
  std::vector<int64_t> offsets;
  // The likeliest tokens of the teacher; with SupportOf::kStudent those of the student when it
  // sampled, because the teacher scored before this update.
  std::vector<TokenId> ids;
  std::vector<float> id_logprobs;  // [ids]
  // [targets] of the policy that sampled; read by DistillLoss::kRefKl, else it may be empty.
  std::vector<float> behaviour;
};

// Why a pass cannot use these scores, which may come from another process: a number that is
// missing, not finite or no log-probability, an id that the student does not have, or has twice.
Result<void> check_scores(const TeacherScores& scores, const DistillLossOptions& options,
                          size_t targets, int64_t num_ids);

class DistillationPass : public LossPass {
 public:
  // Borrows all. `stream`: the trainer's, on the CPU. `sequences`: those of the update, whose
  // targets are tokens of theirs, without kept sets. `scores`: of each, as check_scores() wants
  // them. The loss is not policy_gradient, which is one of policy updates.
  DistillationPass(const Stream& stream, const PolicyTrainer& trainer,
                   const DistillLossOptions& options, std::span<const PackedSequence> sequences,
                   std::span<const TeacherScores> scores);
  // Memory that it allocates for a model of this size.
  static int64_t bytes(const ModelConfig& config);

  Wants wants() const override { return {.states = true}; }
  void add_states(size_t begin, size_t end, ConstMatrix hidden, Matrix dhidden,
                  Parameters& gradients) override;
  void measure_states(size_t begin, size_t end, ConstMatrix hidden) override;
  void end(const GradientTree& tree) override;

  // Behind end(): means over all targets of all ranks, before the update, with `prefix`.
  //   loss        without coef
  //   teacher_kl  k1 = s - t of the target; no divergence where the student did not sample the
  //               target, so `ratio` may give it another name
  // and, of a loss with a support,
  //   student_mass, teacher_mass   probability of the support
  //   overlap_ratio  share of the support in the student's as many likeliest tokens; left out where
  //                  the support is the student's
  MetricList metrics(std::string_view prefix = "distillation/",
                     std::string_view ratio = "teacher_kl") const;

 private:
  // The measurements of a target; ranks exchange them.
  struct Measure {
    double loss = 0, teacher_kl = 0;
    double student_mass = 0, teacher_mass = 0, overlap = 0;
  };
  // A target of the pass.
  struct Place {
    size_t sequence = 0, target = 0;
  };
  // Some rows of the pass: x are their hidden states, and z has the gradient in their logits.
  using TakesRows = std::function<void(int64_t first, ConstMatrix x, Matrix z, Workspace& scratch)>;
  // Measures the targets of these sequences, some rows of logits at a time. `learns`: hears of
  // each; empty: nobody wants a gradient.
  void for_rows(size_t begin, size_t end, ConstMatrix hidden, const TakesRows& learns);
  // Makes of the logits of a target the gradient in them, where `learns`.
  Measure measure(const Place& place, float lse, std::span<float> logits, bool learns) const;
  Measure over_support(const Place& place, float lse, std::span<float> logits, bool learns) const;
  Measure of_sampled(const Place& place, float lse, std::span<float> logits, bool learns) const;
  void finish_gradient(const Place& place, float lse, std::span<const TokenId> ids,
                       std::span<const double> slopes, std::span<float> logits) const;
  double student_logprob(const Place& place, float lse, std::span<const float> logits,
                         TokenId id) const;

  Stream stream_;
  const PolicyTrainer& trainer_;
  const DistillLossOptions& options_;
  std::span<const PackedSequence> sequences_;
  std::span<const TeacherScores> scores_;
  double weight_ = 0;  // of a target's loss
  Buffer memory_;      // logits of some rows, scratch of products
  std::vector<Measure> measures_;
};

}  // namespace tailrace
