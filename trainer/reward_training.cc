#include "trainer/reward_training.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/model/reward_head.h"
#include "core/model/reward_names.h"
#include "kernels/base/check.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/preference.h"
#include "trainer/loss_pass.h"

namespace tailrace {
namespace {

// The measurements of a pair; ranks exchange them.
struct ScoreMeasure {
  double loss = 0, chosen = 0, rejected = 0;
};

MetricList metrics_of(std::span<const ScoreMeasure> measures, std::string_view prefix) {
  double loss = 0, right = 0, margin = 0, sum = 0;
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const ScoreMeasure& m : measures) {
    loss += m.loss;
    // A tie is no preference.
    right += m.chosen > m.rejected ? 1 : 0;
    margin += m.chosen - m.rejected;
    sum += m.chosen + m.rejected;
    least = std::min({least, m.chosen, m.rejected});
    most = std::max({most, m.chosen, m.rejected});
  }
  const auto n = static_cast<double>(measures.size());
  const auto named = [&](std::string_view name) {
    return fmt::format("reward_model/{}{}", prefix, name);
  };
  return {{named("loss"), loss / n},
          {named("accuracy"), right / n},
          {named("margin"), margin / n},
          {named("min_reward"), least},
          {named("mean_reward"), sum / (2 * n)},
          {named("max_reward"), most}};
}

// The mean loss of some pairs.
class ScorePass : public LossPass {
 public:
  ScorePass(const RewardModelOptions& options, const RewardPairs& from,
            std::span<const size_t> rows, std::span<const float> head)
      : options_(options), from_(from), rows_(rows), head_(head.begin(), head.end()) {}

  Wants wants() const override { return {.states = true}; }

  void add_states(size_t begin, size_t end, ConstMatrix hidden, Matrix dhidden,
                  Parameters& gradients) override {
    const double weight = 1 / static_cast<double>(rows_.size());
    const std::span<float> dhead = gradients.values(kScoreName);
    for (size_t i = begin; i < end; i += 2) {
      const auto at = static_cast<int64_t>(i - begin);
      const RewardPairLoss loss = measure(rows_[i / 2], linear_score(hidden.row(at), head_),
                                          linear_score(hidden.row(at + 1), head_));
      for (const auto& [row, slope] :
           {std::pair(at, loss.dchosen), std::pair(at + 1, loss.drejected)}) {
        const auto gradient = static_cast<float>(weight * slope);
        for (size_t k = 0; k < head_.size(); ++k) {
          dhidden.row(row)[k] = gradient * head_[k];
          dhead[k] += gradient * hidden.row(row)[k];
        }
      }
    }
  }

  // In the order of the rows, since slots are.
  void end(const GradientTree& tree) override { measures_ = tree.gather_values(measures_); }

  RewardPairLoss measure(size_t row, double chosen, double rejected) {
    const RewardPairLoss loss =
        reward_pair_loss(chosen, rejected, from_.margins[row], options_.centering);
    measures_.push_back({loss.loss, chosen, rejected});
    return loss;
  }

  std::span<const ScoreMeasure> measures() const { return measures_; }

 private:
  const RewardModelOptions& options_;
  const RewardPairs& from_;
  std::span<const size_t> rows_;
  std::vector<float> head_;  // the weights of the pass, which the update changes
  std::vector<ScoreMeasure> measures_;
};

}  // namespace

RewardPairs::RewardPairs(const std::vector<PreferenceRow>& rows, int64_t padding) {
  for (const PreferenceRow& row : rows) {
    for (const std::vector<TokenId>* completion : {&row.chosen, &row.rejected}) {
      tokens.push_back(row.prompt);
      tokens.back().insert(tokens.back().end(), completion->begin(), completion->end());
      ends.push_back(static_cast<int32_t>(scored_token(tokens.back(), padding)) + 1);
    }
    margins.push_back(row.margin);
  }
}

std::vector<PackedSequence> RewardPairs::views(std::span<const size_t> rows) const {
  std::vector<PackedSequence> views;
  for (const size_t row : rows)
    for (const size_t i : {2 * row, 2 * row + 1})
      views.push_back({.tokens = tokens[i], .targets = std::span(ends).subspan(i, 1)});
  return views;
}

RewardModelTask::RewardModelTask(PolicyTrainer& trainer, const RewardModelOptions& options,
                                 const std::vector<PreferenceRow>& rows,
                                 const std::vector<PreferenceRow>& held_out, uint64_t seed,
                                 int64_t padding)
    : RowTask(options, !held_out.empty(),
              all_batches(options,
                          [&](int64_t epoch) {
                            return batches_of_rows(rows.size(), options.batch_rows, seed, epoch);
                          })),
      trainer_(trainer),
      options_(options),
      train_(rows, padding),
      held_out_(held_out, padding) {
  TR_CHECK(is_reward_model(trainer.model().config()));
  trainer_.reset_optimizer(options.optim);
}

std::span<const float> RewardModelTask::head() {
  return std::as_const(trainer_).parameters().values(kScoreName);
}

MetricList RewardModelTask::update_rows(std::span<const size_t> rows, double done) {
  ScorePass pass(options_, train_, rows, head());
  const Optimizer::Report report = trainer_.row_update(train_.views(rows), pass, 2, done);
  MetricList metrics = metrics_of(pass.measures(), "");
  metrics.insert(metrics.end(), {{"reward_model/grad_norm", report.grad_norm},
                                 {"reward_model/lr", report.lr},
                                 {"reward_model/update_skipped", report.skipped ? 1.0 : 0.0}});
  return metrics;
}

MetricList RewardModelTask::evaluate() {
  std::vector<size_t> rows(held_out_.margins.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  ScorePass pass(options_, held_out_, rows, head());
  const std::vector<double> scores = trainer_.linear_scores(held_out_.views(rows), head());
  for (const size_t row : rows) pass.measure(row, scores[2 * row], scores[2 * row + 1]);
  return metrics_of(pass.measures(), "eval_");
}

}  // namespace tailrace
