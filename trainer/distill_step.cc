#include "trainer/distill_step.h"

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "trainer/distillation_pass.h"

namespace tailrace {
namespace {

TeacherScores scores_of(const TrainSequence& sequence) {
  TeacherScores scores{.logprobs = sequence.teacher_logprobs,
                       .offsets = {},
                       .ids = sequence.teacher_top_ids,
                       .id_logprobs = sequence.teacher_top_logprobs,
                       .behaviour = sequence.recorded_logprobs};
  if (scores.ids.empty()) return scores;
  const auto k = std::ssize(scores.ids) / std::ssize(sequence.targets);
  for (int64_t i = 0; i <= std::ssize(sequence.targets); ++i) scores.offsets.push_back(i * k);
  return scores;
}

}  // namespace

Result<MetricList> distill_step(const Stream& stream, PolicyTrainer& trainer,
                                const TrainBatch& batch, const DistillOptions& options,
                                RunShare share) {
  const TrainOptions& train = trainer.options();
  std::vector<TeacherScores> scores;
  int64_t tokens = 0;
  for (const TrainSequence& sequence : batch.sequences) {
    tokens += std::ssize(sequence.targets);
    scores.push_back(scores_of(sequence));
    if (const auto usable = check_scores(scores.back(), options, sequence.targets.size(),
                                         trainer.model().config().num_ids());
        !usable)
      return Failure{fmt::format("what its teacher says of {} is {}", to_string(sequence.lease),
                                 usable.failure().message)};
  }
  const std::vector<Minibatch> minibatches = split_minibatches(batch, train.minibatches_per_step);
  const auto updates = static_cast<double>(std::ssize(minibatches) * train.ppo_epochs);
  std::map<std::string, double> sums;
  std::vector<std::string> names;
  double made = 0, skipped = 0, norms = 0, lr = 0;
  for (int64_t epoch = 0; epoch < train.ppo_epochs; ++epoch) {
    for (const auto& [begin, end] : minibatches) {
      const std::vector<PackedSequence> sequences =
          packed_views(std::span(batch.sequences).subspan(begin, end - begin));
      DistillationPass pass(stream, trainer, options, sequences,
                            std::span(scores).subspan(begin, end - begin));
      const double done = share.begin + (share.end - share.begin) * (made++ / updates);
      const Optimizer::Report report = trainer.row_update(sequences, pass, 1, done);
      skipped += report.skipped ? 1 : 0;
      norms += report.grad_norm;
      lr = report.lr;
      names.clear();
      for (const auto& [name, value] : pass.metrics()) {
        names.push_back(name);
        sums[name] += value;
      }
    }
  }
  MetricList metrics = batch.metrics;
  metrics.insert(metrics.end(), {{"policy/updates", made},
                                 {"policy/updates_skipped", skipped},
                                 {"policy/loss_tokens", static_cast<double>(tokens)}});
  if (made == 0) return metrics;
  for (const std::string& name : names) metrics.emplace_back(name, sums[name] / made);
  metrics.emplace_back("policy/grad_norm", norms / made);
  metrics.emplace_back("policy/lr", lr);
  return metrics;
}

}  // namespace tailrace
