// Ranks make the updates of one trainer, bit for bit.
#include <functional>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::make_batch;
using testing::metric;
using testing::on_ranks;
using testing::tiny_trainer;

constexpr int64_t kSlots = 4;
const std::vector<int> kNumRanks = {1, 2, 4};

struct Trained {
  std::vector<float> weights;
  MetricList metrics;
  std::map<std::pair<LeaseId, int32_t>, std::vector<float>> seen;  // by the sink
};

PolicyLossConfig loss_without_reference() {
  PolicyLossConfig config;
  config.entropy_coef = .01;
  config.correction.cap = 1.5;
  return config;
}
PolicyLossConfig loss_with_reference() {
  PolicyLossConfig config = loss_without_reference();
  config.kl.coef = .1;
  return config;
}

// Two steps of several updates each, of samples that are fresh and of ones that are not.
Trained train(Collective* ranks, const ModelConfig& model, const TrainOptions& options,
              const OptimOptions& optim = {.lr = 1e-2},
              const PolicyLossConfig& loss = loss_with_reference()) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(6, 3);
  testing::record_logprobs(*tiny_trainer({}, {}, {}, 1, model), trajectories);
  // Other ranks come with other weights, and with threads of their own.
  const int rank = ranks == nullptr ? 0 : ranks->rank();
  ThreadPool pool(rank + 1);
  auto trainer = tiny_trainer(options, optim, Stream{{}, &pool, nullptr},
                              static_cast<uint64_t>(rank) + 1, model);
  Trained trained;
  trainer->watch_logprobs([&](const TrainSequence& sequence, std::span<const float> seen) {
    trained.seen[{sequence.lease, sequence.segment}] = copy(seen);
  });
  Parameters reference(trainer->model().layout());
  init_parameters(trainer->model().config(), 7, reference);
  trainer->set_reference(reference);
  trainer->join(ranks);
  for (int64_t version = 0; version < 2; ++version) {
    TrainBatch batch = make_batch(trajectories);
    trained.metrics = trainer->policy_step(batch, version, loss);
  }
  trained.weights = copy(trainer->parameters().flat());
  return trained;
}

TEST(DataParallel, AnyNumberOfRanksTrainsTheSameWeights) {
  const TrainOptions options{.minibatches_per_step = 2,
                             .microbatch_tokens = 40,
                             .ppo_epochs = 2,
                             .gradient_slots = kSlots};
  const Trained alone = train(nullptr, testing::tiny_model(), options);
  EXPECT_GT(metric(alone.metrics, "policy/grad_norm"), 0);
  EXPECT_EQ(alone.seen.size(), 24u);
  for (const int size : kNumRanks) {
    const auto ranks = on_ranks(
        size, [&](Collective* group) { return train(group, testing::tiny_model(), options); });
    for (const Trained& rank : ranks) {
      EXPECT_EQ(rank.weights, alone.weights) << size;
      EXPECT_EQ(rank.metrics, alone.metrics) << size;
      EXPECT_EQ(rank.seen, alone.seen) << size;
    }
  }
}

// Dense, and with experts whose matrices have few rows. Ranks have 1 to 4 threads.
TEST(DataParallel, AnyNumberOfRanksMakesTheSameUpdatesOfMuon) {
  const OptimOptions muon{.kind = OptimizerKind::kMuon, .lr = 1e-2, .weight_decay = .1};
  for (const ModelConfig& model : {testing::tiny_model(), testing::sparse_model()}) {
    const TrainOptions options{.minibatches_per_step = 2, .gradient_slots = kSlots};
    const Trained alone = train(nullptr, model, options, muon);
    EXPECT_NE(alone.weights, train(nullptr, model, options).weights);
    for (const int size : kNumRanks) {
      const auto ranks =
          on_ranks(size, [&](Collective* group) { return train(group, model, options, muon); });
      for (const Trained& rank : ranks) EXPECT_EQ(rank.weights, alone.weights) << size;
    }
  }
}

// Each rank weighs by the mean of all, though it computes a part of them.
TEST(DataParallel, AnyNumberOfRanksDividesByTheSameMeanWeight) {
  const TrainOptions options{.minibatches_per_step = 2, .gradient_slots = kSlots};
  PolicyLossConfig loss = loss_with_reference();
  const auto with = [&](Collective* group) {
    return train(group, testing::tiny_model(), options, {.lr = 1e-2}, loss);
  };
  const Trained without = with(nullptr);
  loss.correction.normalize = true;
  const Trained alone = with(nullptr);
  EXPECT_NE(alone.weights, without.weights);
  for (const int size : kNumRanks) {
    for (const Trained& rank : on_ranks(size, with)) {
      EXPECT_EQ(rank.weights, alone.weights) << size;
      EXPECT_EQ(rank.metrics, alone.metrics) << size;
    }
  }
}

TEST(DataParallel, AnyNumberOfRanksTrainsTheSameCritic) {
  std::vector<Trajectory> trajectories = testing::recorded(6, 3);
  const auto train = [&](Collective* ranks) {
    // Other ranks come with other heads: they take that of rank 0.
    auto trainer =
        tiny_trainer({.minibatches_per_step = 2, .microbatch_tokens = 40, .gradient_slots = kSlots},
                     {.lr = 1e-2});
    trainer->use_critic({.warmup_steps = 1});
    const auto step = [&](int64_t version) {
      TrainBatch batch = make_batch(trajectories);
      testing::set_returns(batch);
      const MetricList metrics = trainer->policy_step(batch, version, loss_without_reference());
      std::vector<float> values;
      for (const TrainSequence& s : batch.sequences)
        values.insert(values.end(), s.old_values.begin(), s.old_values.end());
      return std::tuple(metrics, values, trainer->critic()->digest());
    };
    if (ranks != nullptr && ranks->rank() > 0) step(0);
    trainer->join(ranks);
    return std::pair(std::vector{step(0), step(1), step(2)}, copy(trainer->parameters().flat()));
  };
  const auto alone = train(nullptr);
  EXPECT_GT(metric(std::get<0>(alone.first.back()), "critic/value_loss"), 0);
  for (const int size : kNumRanks) {
    for (const auto& rank : on_ranks(size, train)) EXPECT_EQ(rank, alone) << size;
  }
}

// More ranks than sequences: some have nothing to compute.
TEST(DataParallel, ARankWithoutSequencesIsNoMistake) {
  const auto step = [](Collective* group) {
    const Trajectory only = testing::random_trajectories(1, 3).front();
    auto trainer = tiny_trainer({.gradient_slots = kSlots}, {.lr = 1e-2});
    trainer->join(group);
    std::vector<int32_t> targets;
    for (size_t i = 1; i < only.segments.front().tokens.size(); ++i)
      targets.push_back(static_cast<int32_t>(i));
    const PackedSequence sequence{.tokens = only.segments.front().tokens, .targets = targets};
    const MetricList metrics = trainer->sft_update({&sequence, 1});
    return std::tuple(metrics, trainer->score({&sequence, 1}), copy(trainer->parameters().flat()));
  };
  const auto alone = step(nullptr);
  for (const int size : kNumRanks) {
    for (const auto& rank : on_ranks(size, step)) EXPECT_EQ(rank, alone);
  }
}

TEST(DataParallel, ExpertsAreBalancedByTheChoicesOfAllRanks) {
  ModelConfig model = testing::sparse_model();
  model.choice_bias = true;
  const TrainOptions options{.microbatch_tokens = 40,
                             .gradient_slots = kSlots,
                             .balance_coef = 0.01,
                             .balance_bias_rate = 0.25};
  const Trained alone = train(nullptr, model, options);
  for (const int size : kNumRanks) {
    for (const Trained& rank :
         on_ranks(size, [&](Collective* group) { return train(group, model, options); })) {
      EXPECT_EQ(rank.weights, alone.weights) << size;
      for (const char* name : {"experts/load_max", "experts/idle_frac", "experts/bias_max"})
        EXPECT_EQ(metric(rank.metrics, name), metric(alone.metrics, name)) << size << name;
      EXPECT_NEAR(metric(rank.metrics, "experts/balance_loss"),
                  metric(alone.metrics, "experts/balance_loss"), 1e-12);
    }
  }
}

// One rank, whose sums another one does not live to see at first.
class LosesOnce : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void sum(std::span<float>) override {
    if (std::exchange(loses_, false)) throw RankLost("on purpose");
  }
  void broadcast(std::span<std::byte>) override {}
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override {
    return {{own.begin(), own.end()}};
  }

 private:
  bool loses_ = true;
};

TEST(DataParallel, AStepThatLostARankLeavesNothingBehind) {
  ModelConfig model = testing::sparse_model();
  model.choice_bias = true;
  const TrainOptions options{.gradient_slots = kSlots, .balance_bias_rate = 0.25};
  const std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
  std::vector<std::vector<float>> weights;
  std::vector<MetricList> metrics;
  for (const bool loses : {false, true}) {
    auto trainer = tiny_trainer(options, {.lr = 1e-2}, {}, 1, model);
    LosesOnce ranks;
    if (loses) {
      trainer->join(&ranks);
      TrainBatch batch = make_batch(testing::random_trajectories(8, 3));
      EXPECT_THROW((void)trainer->policy_step(batch, 0, loss_without_reference()), RankLost);
      EXPECT_EQ(trainer->optimizer().updates(), 0);
      trainer->join(&ranks);
    }
    TrainBatch batch = make_batch(trajectories);
    metrics.push_back(trainer->policy_step(batch, 0, loss_without_reference()));
    weights.push_back(copy(trainer->parameters().flat()));
  }
  EXPECT_EQ(weights[1], weights[0]);
  EXPECT_EQ(metrics[1], metrics[0]);
}

// A rank that takes the place of a lost one goes on with what the optimizer of rank 0 has learned.
TEST(DataParallel, ANewGroupGoesOnWhereRankZeroStands) {
  const std::vector<Trajectory> trajectories = testing::random_trajectories(4, 5);
  const TrainOptions options{.gradient_slots = kSlots};
  PolicyLossConfig config;
  const auto step = [&](PolicyTrainer& trainer, int64_t version) {
    TrainBatch batch = make_batch(trajectories);
    (void)trainer.policy_step(batch, version, config);
  };
  auto alone = tiny_trainer(options, {.lr = 1e-2});
  auto veteran = tiny_trainer(options, {.lr = 1e-2});
  step(*alone, 0), step(*alone, 1);
  step(*veteran, 0);
  for (const auto& weights : on_ranks(2, [&](Collective* group) {
         std::unique_ptr<PolicyTrainer> fresh;
         if (group->rank() == 1) fresh = tiny_trainer(options, {.lr = 1e-2}, {}, 9);
         PolicyTrainer& trainer = fresh ? *fresh : *veteran;
         trainer.join(group);
         step(trainer, 1);
         trainer.join(nullptr);
         EXPECT_EQ(trainer.optimizer().updates(), 2);
         return copy(trainer.parameters().flat());
       }))
    EXPECT_EQ(weights, copy(alone->parameters().flat()));
}

}  // namespace
}  // namespace tailrace
