#include "core/run/stage_row.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

MetricsRow row_of(MetricList values) {
  return {.step = 3, .version = -1, .unix_seconds = 0, .values = std::move(values)};
}

TEST(StageRow, SaysWhichTrainingARowIsOf) {
  const MetricsRow sft = row_of({{"sft/loss", 1.5}, {"sft/updates", 9}});
  auto row = stage_row(sft);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->stage, 1);
  EXPECT_EQ(row->kind, "sft");
  EXPECT_EQ(row->updates, 9);
  EXPECT_EQ(*row->loss, 1.5);
  EXPECT_EQ(row->eval_loss, nullptr);
  EXPECT_EQ(row->accuracy, nullptr);

  const MetricsRow pairs = row_of({{"preference/loss", 0.5},
                                   {"rewards/accuracies", 0.75},
                                   {"preference/eval_loss", 0.25},
                                   {"eval_rewards/accuracies", 1},
                                   {"stage", 3}});
  row = stage_row(pairs);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->stage, 3);
  EXPECT_EQ(row->kind, "preference");
  EXPECT_EQ(row->updates, 0);
  EXPECT_EQ(*row->accuracy, 0.75);
  EXPECT_EQ(*row->eval_loss, 0.25);
  EXPECT_EQ(*row->eval_accuracy, 1);

  const MetricsRow scores = row_of({{"reward_model/loss", 0.5},
                                    {"reward_model/accuracy", 0.25},
                                    {"reward_model/eval_accuracy", 0.125}});
  row = stage_row(scores);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->kind, "reward_model");
  EXPECT_EQ(*row->accuracy, 0.25);
  EXPECT_EQ(*row->eval_accuracy, 0.125);

  const MetricsRow taught = row_of({{"distill/loss", 0.5}, {"distill/eval_loss", 0.25}});
  row = stage_row(taught);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->kind, "distill");
  EXPECT_EQ(*row->eval_loss, 0.25);
  EXPECT_EQ(row->accuracy, nullptr);
}

TEST(StageRow, HeldOutRowsAloneAndARowOfUpdatesAloneAreOfATraining) {
  const MetricsRow held_out = row_of({{"sft/eval_loss", 2}, {"sft/eval_token_accuracy", 0.5}});
  auto row = stage_row(held_out);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->loss, nullptr);
  EXPECT_EQ(*row->eval_accuracy, 0.5);
  const MetricsRow updates = row_of({{"preference/updates", 4}});
  row = stage_row(updates);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->kind, "preference");
  EXPECT_EQ(row->updates, 4);
}

TEST(StageRow, StepsAndEvaluationsAreOfNone) {
  EXPECT_FALSE(stage_row({.step = 1, .version = 0, .values = {{"sft/loss", 1}}}));
  EXPECT_FALSE(stage_row(row_of({{"reward/mean", 1}})));
  EXPECT_FALSE(stage_row({.step = 1, .version = 0, .values = {{"distillation/loss", 1}}}));
  EXPECT_FALSE(stage_row(row_of({})));
}

TEST(StageRow, EachKindHasItsWordsAndItsMetricOfUpdates) {
  EXPECT_EQ(words_of_stage("sft"), "supervised");
  EXPECT_EQ(words_of_stage("reward_model"), "reward model");
  EXPECT_EQ(words_of_stage("preference"), "preference");
  EXPECT_EQ(words_of_stage("distill"), "distillation");
  EXPECT_EQ(updates_metric("reward_model"), "reward_model/updates");
}

}  // namespace
}  // namespace tailrace
