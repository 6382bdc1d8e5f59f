// Reward models: their loss and its slopes, learning, and what nothing depends on.
#include "trainer/reward_training.h"

#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

#include "core/model/reward_files.h"
#include "core/model/reward_head.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"
#include "tests/trainer/random_preferences.h"
#include "tests/trainer/slopes.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::metric;
using testing::random_pairs;
using testing::tiny_trainer;

RewardModelOptions options_of(double lr, double centering = 0.01) {
  RewardModelOptions options;
  options.centering = centering;
  options.batch_rows = 100;
  options.optim.lr = lr;
  return options;
}

// With the body of the tiny policy, and a head of 0.
std::unique_ptr<PolicyTrainer> reward_trainer(const TrainOptions& train, Stream stream = {},
                                              uint64_t seed = 1) {
  auto trainer = tiny_trainer(train, {}, stream, seed, reward_model_config(testing::tiny_model()));
  auto policy = tiny_trainer({}, {}, {}, seed);
  copy_reward_body(policy->parameters(), trainer->parameters());
  trainer->weights_changed();
  return trainer;
}

TEST(RewardTraining, AHeadOfZeroBeginsAtLogTwo) {
  auto trainer = reward_trainer({});
  std::vector<PreferenceRow> rows = random_pairs(6);
  for (PreferenceRow& row : rows) row.margin = 0;
  RewardModelTask task(*trainer, options_of(1e-2), rows, rows, 1);
  EXPECT_NEAR(metric(task.evaluate(), "reward_model/eval_loss"), std::log(2), 1e-12);
  EXPECT_NEAR(metric(*task.update(), "reward_model/loss"), std::log(2), 1e-12);
  EXPECT_GT(metric(task.evaluate(), "reward_model/eval_margin"), 0);
}

TEST(RewardTraining, HasTheSlopeOfItsLossAsGradient) {
  auto trainer = reward_trainer({});
  Rng rng(4);
  for (float& w : trainer->parameters().values(kScoreName)) w = static_cast<float>(rng.normal());
  trainer->weights_changed();
  const std::vector<PreferenceRow> rows = random_pairs(6);
  RewardModelTask task(*trainer, options_of(0, 0.05), rows, rows, 1);
  const double first = metric(*task.update(), "reward_model/loss");
  EXPECT_NEAR(metric(task.evaluate(), "reward_model/eval_loss"), first, 1e-9);
  const std::vector<float> gradient = copy(trainer->gradients().flat());
  testing::expect_slopes(*trainer, gradient, rng,
                         [&] { return metric(task.evaluate(), "reward_model/eval_loss"); });
}

TEST(RewardTraining, LearnsItsPairs) {
  auto trainer = reward_trainer({});
  const std::vector<PreferenceRow> rows = random_pairs(12);
  RewardModelOptions options = options_of(5e-3);
  options.epochs = 30;
  RewardModelTask task(*trainer, options, rows, rows, 1);
  while (task.update()) {
  }
  const MetricList after = task.evaluate();
  EXPECT_EQ(metric(after, "reward_model/eval_accuracy"), 1);
  EXPECT_LT(metric(after, "reward_model/eval_loss"), 0.3);
  EXPECT_NEAR(metric(after, "reward_model/eval_mean_reward"), 0, 1) << "centred";
}

TEST(RewardTraining, AnyNumberOfRanksTrainsTheSameWeights) {
  const auto work = [](Collective* ranks) {
    ThreadPool pool(ranks == nullptr ? 1 : ranks->rank() + 1);
    auto trainer =
        reward_trainer({.microbatch_tokens = 100, .gradient_slots = 4}, Stream{{}, &pool, nullptr});
    trainer->join(ranks);
    RewardModelOptions options = options_of(1e-2);
    options.batch_rows = 5;
    options.epochs = 2;
    RewardModelTask task(*trainer, options, random_pairs(12), random_pairs(5), 1);
    MetricList last;
    while (auto metrics = task.update()) last = *metrics;
    return std::tuple(last, task.evaluate(), copy(trainer->parameters().flat()));
  };
  const auto alone = work(nullptr);
  for (const int size : {2, 4})
    for (const auto& rank : testing::on_ranks(size, work)) EXPECT_EQ(rank, alone) << size;
}

TEST(RewardTraining, GoesOnFromWhereItWasSavedWithTheSameBits) {
  RewardModelOptions options = options_of(1e-2);
  options.batch_rows = 4;
  options.epochs = 3;
  const std::vector<PreferenceRow> rows = random_pairs(13);
  TemporaryDirectory dir;
  auto whole = reward_trainer({});
  RewardModelTask task(*whole, options, rows, {}, 1);
  CheckpointFolder folder(dir.path() / "reward_model", {}, 1);
  for (int i = 0; i < 5; ++i) task.update();
  ASSERT_TRUE(folder.save({.step = task.updates_done()}, whole->model().config(),
                          whole->parameters(), whole->optimizer()));
  while (task.update()) {
  }
  auto again = reward_trainer({}, {}, 9);
  RewardModelTask rest(*again, options, rows, {}, 1);
  const auto loaded =
      folder.load_latest(again->model().config(), again->parameters(), again->optimizer());
  ASSERT_TRUE(loaded);
  again->weights_changed();
  rest.skip(loaded->state.step);
  while (rest.update()) {
  }
  EXPECT_TRUE(std::ranges::equal(whole->parameters().flat(), again->parameters().flat()));
}

}  // namespace
}  // namespace tailrace
