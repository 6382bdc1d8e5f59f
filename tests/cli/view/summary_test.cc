#include "cli/view/summary.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using std::chrono::seconds;

MetricsRow row_at(int64_t step, std::vector<std::pair<std::string, double>> values) {
  MetricsRow out;
  out.step = step;
  out.values = std::move(values);
  return out;
}

TEST(RunSummary, GoesFromTheFirstToTheLastEvaluation) {
  const std::vector<MetricsRow> rows = {
      row_at(0, {{"eval/success", 0.391}}), row_at(1, {{"reward/mean", 0.3}}),
      row_at(20, {{"eval/success", 0.8}}),
      row_at(80, {{"eval/success", 0.9941}, {"eval/episodes", 512}})};
  EXPECT_EQ(run_summary(rows, "quickstart", seconds(61), "runs/q"),
            "quickstart: success 0.39 -> 0.99 (held-out, 512 episodes), 61 s, run: runs/q");
}

TEST(RunSummary, SaysRewardWhereTheEnvironmentKnowsNoSuccess) {
  const std::vector<MetricsRow> rows = {
      row_at(0, {{"eval/reward", 0.25}}),
      row_at(60, {{"eval/reward", 0.75}, {"eval/episodes", 128}})};
  EXPECT_EQ(run_summary(rows, "tiny", seconds(90), "runs/t"),
            "tiny: reward 0.25 -> 0.75 (held-out, 128 episodes), 90 s, run: runs/t");
}

TEST(RunSummary, SaysTheHeldOutLossOfPreferences) {
  std::vector<MetricsRow> rows = {row_at(0, {{"sft/eval_loss", 3}}),
                                  row_at(0, {{"preference/eval_loss", 0.75}}),
                                  row_at(9, {{"preference/eval_loss", 0.5}})};
  EXPECT_EQ(run_summary(rows, "kto", seconds(2), "r"),
            "kto: loss 0.750 -> 0.500 (held-out), 2 s, run: r");
  rows[1].values.emplace_back("eval_rewards/accuracies", 0);
  rows[2].values.emplace_back("eval_rewards/accuracies", 0.875);
  EXPECT_EQ(run_summary(rows, "dpo", seconds(2), "r"),
            "dpo: loss 0.750 -> 0.500, accuracy 0.00 -> 0.88 (held-out), 2 s, run: r");
}

TEST(RunSummary, SaysTheHeldOutLossOfDistillation) {
  const std::vector<MetricsRow> rows = {row_at(0, {{"preference/eval_loss", 3}}),
                                        row_at(0, {{"distill/eval_loss", 0.75}}),
                                        row_at(9, {{"distill/eval_loss", 0.5}})};
  EXPECT_EQ(run_summary(rows, "a", seconds(2), "r"),
            "a: loss 0.750 -> 0.500 (held-out), 2 s, run: r");
}

TEST(RunSummary, FallsBackToTraining) {
  const std::vector<MetricsRow> rows = {row_at(1, {{"reward/mean", 0.25}}),
                                        row_at(2, {{"reward/mean", 0.5}})};
  EXPECT_EQ(run_summary(rows, "a", seconds(2), "r"),
            "a: reward 0.25 -> 0.50 (training), 2 s, run: r");
  EXPECT_EQ(run_summary(std::vector<MetricsRow>{}, "a", seconds(2), "r"), "a: done, 2 s, run: r");
}

TEST(RunSummary, OfSupervisedTrainingAloneIsTheHeldOutLoss) {
  const std::vector<MetricsRow> rows = {
      row_at(0, {{"sft/eval_loss", 5.5}, {"sft/eval_token_accuracy", 0.25}}),
      row_at(9, {{"sft/eval_loss", 0.5}, {"sft/eval_token_accuracy", 0.75}})};
  EXPECT_EQ(run_summary(rows, "a", seconds(2), "r"),
            "a: loss 5.500 -> 0.500, token accuracy 0.25 -> 0.75 (held-out), 2 s, run: r");
}

}  // namespace
}  // namespace tailrace
