#include "trainer/distill_task.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/digest_of.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

std::vector<SftRow> joined(std::vector<SftRow> rows, std::vector<SftRow> more) {
  std::ranges::move(more, std::back_inserter(rows));
  return rows;
}

Digest digest_of_rows(const std::vector<SftRow>& rows) {
  RunningDigest digest;
  for (const SftRow& row : rows) {
    const int64_t sizes[] = {std::ssize(row.tokens), std::ssize(row.targets)};
    digest.add(std::as_bytes(std::span(sizes)));
    digest.add(std::as_bytes(std::span(row.tokens)));
    digest.add(std::as_bytes(std::span(row.targets)));
  }
  return digest.value();
}

}  // namespace

DistillTask::DistillTask(const Stream& stream, PolicyTrainer& trainer,
                         const DistillStageOptions& options, std::vector<SftRow> rows,
                         std::vector<SftRow> held_out, uint64_t seed)
    : RowTask(options, !held_out.empty(),
              all_batches(options,
                          [&](int64_t epoch) {
                            return sft_batches(rows, options.batch_tokens, seed, epoch);
                          })),
      stream_(stream),
      trainer_(trainer),
      options_(options),
      num_trained_(rows.size()) {
  rows_ = joined(std::move(rows), std::move(held_out));
  int64_t targets = 0;
  for (const SftRow& row : rows_) {
    first_target_.push_back(targets);
    targets += std::ssize(row.targets);
  }
  first_target_.push_back(targets);
  trainer_.reset_optimizer(options.optim);
}

TeacherFileHead DistillTask::head() const {
  const int64_t ids = trainer_.model().config().num_ids();
  return {.rows = digest_of_rows(rows_),
          .targets = first_target_.back(),
          .top_k = needs_support(options_.loss.kind) ? std::min(options_.loss.top_k, ids) : 0};
}

std::vector<PackedSequence> DistillTask::views(std::span<const size_t> rows) const {
  std::vector<PackedSequence> views;
  for (const size_t row : rows)
    views.push_back({.tokens = rows_[row].tokens, .targets = rows_[row].targets});
  return views;
}

std::vector<TeacherScores> DistillTask::scores_of(std::span<const size_t> rows) const {
  TR_CHECK(scores_.has_value(), "set_scores() comes first");
  std::vector<TeacherScores> scores;
  for (const size_t row : rows)
    scores.push_back(scores_->scores(first_target_[row], std::ssize(rows_[row].targets)));
  return scores;
}

size_t DistillTask::num_targets(std::span<const size_t> rows) const {
  size_t targets = 0;
  for (const size_t row : rows) targets += rows_[row].targets.size();
  return targets;
}

MetricList DistillTask::update_rows(std::span<const size_t> rows, double done) {
  const std::vector<PackedSequence> sequences = views(rows);
  const std::vector<TeacherScores> scores = scores_of(rows);
  DistillationPass pass(stream_, trainer_, options_.loss, sequences, scores);
  const Optimizer::Report report = trainer_.row_update(sequences, pass, 1, done);
  MetricList metrics = pass.metrics("distill/", "log_ratio");
  metrics.insert(metrics.end(), {{"distill/tokens", static_cast<double>(num_targets(rows))},
                                 {"distill/grad_norm", report.grad_norm},
                                 {"distill/lr", report.lr},
                                 {"distill/update_skipped", report.skipped ? 1.0 : 0.0}});
  return metrics;
}

// Batch by batch, so that the scores of one batch are in memory.
MetricList DistillTask::evaluate() {
  MetricList means;
  double targets = 0;
  for (size_t begin = num_trained_; begin < rows_.size();) {
    std::vector<size_t> batch;
    int64_t tokens = 0;
    for (; begin < rows_.size() && (batch.empty() || tokens < options_.batch_tokens); ++begin) {
      batch.push_back(begin);
      tokens += std::ssize(rows_[begin].tokens);
    }
    beat();
    const std::vector<PackedSequence> sequences = views(batch);
    const std::vector<TeacherScores> scores = scores_of(batch);
    DistillationPass pass(stream_, trainer_, options_.loss, sequences, scores);
    trainer_.row_evaluation(sequences, pass);
    const auto weight = static_cast<double>(num_targets(batch));
    const MetricList found = pass.metrics("distill/eval_", "log_ratio");
    if (means.empty())
      for (const auto& [name, value] : found) means.emplace_back(name, 0);
    for (size_t i = 0; i < found.size(); ++i) means[i].second += weight * found[i].second;
    targets += weight;
  }
  for (auto& [name, value] : means) value /= targets;
  return means;
}

}  // namespace tailrace
