#include "trainer/critic.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/trainer/fixtures.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

using testing::make_batch;
using testing::metric;
using testing::recorded;
using testing::set_returns;
using testing::tiny_trainer;

constexpr int64_t kHidden = 6;

// Random hidden states, and sequences of one target each that they belong to.
struct Rows {
  std::vector<float> hidden;
  std::vector<TrainSequence> sequences;

  explicit Rows(int64_t count, uint64_t seed = 3) {
    Rng rng(seed);
    for (int64_t i = 0; i < count; ++i) {
      double value = 0.5;
      for (int64_t k = 0; k < kHidden; ++k) {
        const double h = 2 * rng.uniform() - 1;
        hidden.push_back(static_cast<float>(h));
        value += (static_cast<double>(k) - 2) * h / 4;
      }
      TrainSequence sequence;
      sequence.targets = {1};
      sequence.old_values = {0};
      sequence.returns = {static_cast<float>(value)};
      sequences.push_back(std::move(sequence));
    }
  }
  int64_t count() const { return std::ssize(sequences); }
  ConstMatrix matrix() const { return {hidden.data(), count(), kHidden}; }
  void update(Critic& critic) const { update(critic, count()); }
  void update(Critic& critic, int64_t tokens) const {
    critic.begin({.sequences = sequences, .counts = {.tokens = tokens}});
    critic.add(0, 0, sequences.size(), {.hidden = matrix()});
    critic.apply();
  }
};

TEST(Critic, BeginsAtZeroAndLearnsALinearFunction) {
  const Rows rows(64);
  Critic critic(kHidden, 1, {.lr = 1e-2, .value_clip = 0, .max_grad_norm = 0});
  for (const float value : critic.values(rows.matrix())) EXPECT_EQ(value, 0);
  for (int i = 0; i < 2000; ++i) rows.update(critic);
  const std::vector<float> values = critic.values(rows.matrix());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], rows.sequences[i].returns[0], 1e-3) << i;
  // Of rows that it has not seen.
  const Rows others(32, 9);
  const std::vector<float> unseen = critic.values(others.matrix());
  for (size_t i = 0; i < unseen.size(); ++i)
    EXPECT_NEAR(unseen[i], others.sequences[i].returns[0], 1e-3) << i;
}

// Two states of 3 and 1 with the returns 1 and 0: about their means, 1 and -1 with 0.5 and -0.5.
struct Pair {
  std::vector<float> hidden = {3, 1};
  std::vector<TrainSequence> sequences{2};
  Critic critic{1, 1, {.lr = 0.1, .value_clip = 0, .max_grad_norm = 0}};

  Pair() {
    for (size_t i = 0; i < 2; ++i) {
      sequences[i].targets = {1};
      sequences[i].old_values = {0};
      sequences[i].returns = {i == 0 ? 1.0f : 0.0f};
    }
  }
  void update() {
    critic.begin({.sequences = sequences, .counts = {.tokens = 2}});
    critic.add(0, 0, 2, {.hidden = matrix()});
    critic.apply();
  }
  ConstMatrix matrix() const { return {hidden.data(), 2, 1}; }
};

TEST(Critic, ItsOptimizerIsAdamWAboutTheMeans) {
  Pair pair;
  pair.update();
  // The mean return, and a first step of lr in the sign of the gradient.
  EXPECT_NEAR(pair.critic.values(pair.matrix())[0], 0.5 + 0.1, 1e-6);
  EXPECT_NEAR(pair.critic.values(pair.matrix())[1], 0.5 - 0.1, 1e-6);
  pair.update();
  // g: ((0 - 1) 1 + (0 - 0) -1) / 2, then ((0.6 - 1) 1 + (0.4 - 0) -1) / 2.
  const double m = (0.9 * 0.1 * -0.5 + 0.1 * -0.4) / 0.19,
               v = (0.999 * 0.001 * 0.25 + 0.001 * 0.16) / (1 - 0.999 * 0.999);
  EXPECT_NEAR(pair.critic.values(pair.matrix())[0], 0.6 + 0.1 * -m / std::sqrt(v), 1e-5);
  const MetricList metrics = pair.critic.take_metrics({});
  EXPECT_NEAR(metric(metrics, "critic/value_loss"), (0.25 + 0.5 * (0.16 + 0.16) / 2) / 2, 1e-6);
  EXPECT_NEAR(metric(metrics, "critic/grad_norm"), (0.5 + 0.4) / 2, 1e-6);
  EXPECT_TRUE(pair.critic.take_metrics({}).empty());
}

// What all states have in common, and what all returns have, is in no weight.
TEST(Critic, AFarMeanOfStatesOrReturnsCostsNothing) {
  const auto spread = [](float state, float value) {
    Pair pair;
    for (float& h : pair.hidden) h += state;
    for (TrainSequence& s : pair.sequences) s.returns[0] += value;
    for (int i = 0; i < 3; ++i) pair.update();
    const std::vector<float> values = pair.critic.values(pair.matrix());
    EXPECT_NEAR((values[0] + values[1]) / 2, 0.5 + value, 1e-4);
    return values[0] - values[1];
  };
  const float near = spread(0, 0);
  EXPECT_GT(near, 0.3);
  EXPECT_NEAR(spread(100, 0), near, 1e-3);
  EXPECT_NEAR(spread(0, 50), near, 1e-3);
}

// Denominators and gradients know the same tokens.
TEST(Critic, RejectedTokensTeachNothing) {
  Rows rows(8);
  Critic half(kHidden, 1, {}), whole(kHidden, 1, {});
  Rows first = rows;
  first.sequences.resize(4);
  first.hidden.resize(4 * kHidden);
  first.update(half);
  for (size_t i = 4; i < 8; ++i) {
    rows.sequences[i].mask = {0};
    rows.sequences[i].returns = {100};
  }
  rows.update(whole, 4);
  EXPECT_EQ(whole.digest(), half.digest());
}

TEST(Critic, AGradientThatIsNotFiniteChangesNothing) {
  Rows rows(4);
  Critic critic(kHidden, 1, {});
  rows.update(critic);
  const std::vector<float> before = critic.values(rows.matrix());
  rows.sequences[2].returns[0] = std::numeric_limits<float>::infinity();
  rows.update(critic);
  EXPECT_EQ(critic.values(rows.matrix()), before);
  EXPECT_FALSE(std::isfinite(metric(critic.take_metrics({}), "critic/grad_norm")));
}

TEST(Critic, GoesOnFromItsFileWithTheSameBits) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder.path() / "critic.safetensors";
  const Rows rows(16);
  Critic critic(kHidden, 2, {}), loaded(kHidden, 2, {});
  for (int i = 0; i < 3; ++i) rows.update(critic);
  critic.save(file);
  loaded.load(file);
  EXPECT_EQ(loaded.digest(), critic.digest());
  rows.update(critic);
  EXPECT_NE(loaded.digest(), critic.digest());
  rows.update(loaded);
  EXPECT_EQ(loaded.digest(), critic.digest());
  EXPECT_EQ(loaded.values(rows.matrix()), critic.values(rows.matrix()));

  Critic other(kHidden + 1, 2, {});
  try {
    other.load(file);
    FAIL() << "a head of another size";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("critic.weight does not fit the model"),
              std::string::npos)
        << error.what();
  }
}

// The row that it reads is the one that the log-probability is made of.
TEST(Critic, ReadsTheStateThatPredictsTheTarget) {
  auto trainer = tiny_trainer({});
  PackedForward forward(trainer->model(), {64, 8}, testing::kMaxSequenceTokens,
                        ForBackward::kNothing, 1);
  const std::vector<TokenId> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<int32_t> targets = {2, 5, 7};
  const PackedSequence sequence{.tokens = tokens, .targets = targets};
  const PackedWeights packed({}, trainer->model().config(), trainer->parameters());
  const PackedForward::Output output = forward.forward({}, packed, {&sequence, 1}, {});
  ASSERT_EQ(output.hidden.rows, 3);
  const ConstMatrix head =
      std::as_const(*trainer).parameters().matrix(trainer->model().head_name());
  for (int64_t row = 0; row < 3; ++row) {
    double sum = 0, drawn = 0;
    for (int64_t id = 0; id < head.rows; ++id) {
      double logit = 0;
      for (int64_t i = 0; i < head.cols; ++i)
        logit += double{head.row(id)[i]} * output.hidden.row(row)[i];
      sum += std::exp(logit);
      if (id == tokens[static_cast<size_t>(targets[static_cast<size_t>(row)])]) drawn = logit;
    }
    EXPECT_NEAR(output.logprob[static_cast<size_t>(row)], drawn - std::log(sum), 1e-4) << row;
  }
}

std::vector<float> old_values(const TrainBatch& batch) {
  std::vector<float> all;
  for (const TrainSequence& s : batch.sequences)
    all.insert(all.end(), s.old_values.begin(), s.old_values.end());
  return all;
}

TEST(Critic, LeavesThePolicyAlone) {
  const std::vector<Trajectory> trajectories = recorded(4, 2);
  const auto run = [&](bool has_critic) {
    auto trainer = tiny_trainer({.minibatches_per_step = 2, .gradient_slots = 3}, {.lr = 1e-2});
    if (has_critic) trainer->use_critic({});
    MetricList metrics;
    for (int64_t version = 0; version < 2; ++version) {
      TrainBatch batch = make_batch(trajectories);
      set_returns(batch);
      metrics = trainer->policy_step(batch, version, testing::loss_config());
    }
    std::erase_if(metrics, [](const auto& m) { return m.first.starts_with("critic/"); });
    return std::pair(testing::copy(trainer->parameters().flat()), metrics);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Critic, ExplainsMoreOfTheReturnsStepByStep) {
  const std::vector<Trajectory> trajectories = recorded(4, 2);
  auto trainer = tiny_trainer({.ppo_epochs = 20}, testing::kStill);
  trainer->use_critic({.lr = 2e-2, .value_clip = 0});
  double first_loss = 0, explained = 0, loss = 0;
  for (int64_t version = 0; version < 20; ++version) {
    TrainBatch batch = make_batch(trajectories);
    set_returns(batch);
    const MetricList metrics = trainer->policy_step(batch, version, {});
    if (version == 0) {
      // A head of zeros says the same of all.
      EXPECT_EQ(metric(metrics, "critic/explained_variance"), 0);
      first_loss = metric(metrics, "critic/value_loss");
      EXPECT_EQ(std::ranges::count(old_values(batch), 0.0f), std::ssize(old_values(batch)));
    }
    explained = metric(metrics, "critic/explained_variance");
    loss = metric(metrics, "critic/value_loss");
  }
  EXPECT_GT(explained, 0.5);
  // The first step has the mean at once, and learns differences.
  EXPECT_LT(loss, 0.7 * first_loss);
}

TEST(Critic, WarmsUpWhileThePolicyStandsStill) {
  const std::vector<Trajectory> trajectories = recorded(4, 2);
  auto trainer = tiny_trainer({.minibatches_per_step = 2}, {.lr = 1e-2});
  trainer->use_critic({.warmup_steps = 2});
  const std::vector<float> start = testing::copy(trainer->parameters().flat());
  for (int64_t version = 0; version < 3; ++version) {
    TrainBatch batch = make_batch(trajectories);
    set_returns(batch);
    const Digest before = trainer->critic()->digest();
    const int64_t tries = trainer->tries();
    const MetricList metrics = trainer->policy_step(batch, version, {});
    const bool still = testing::copy(trainer->parameters().flat()) == start;
    EXPECT_EQ(still, version < 2) << version;
    EXPECT_EQ(metric(metrics, "policy/updates"), version < 2 ? 0 : 2);
    EXPECT_NE(trainer->critic()->digest(), before);
    EXPECT_EQ(trainer->tries() - tries, version < 2 ? 2 : 4);
    EXPECT_GT(metric(metrics, "critic/grad_norm"), 0);
  }
}

// What a step that warms the head up does to it is what any other step does.
TEST(Critic, LearnsTheSameWhetherThePolicyMovesOrNot) {
  const std::vector<Trajectory> trajectories = recorded(4, 2);
  std::vector<Digest> digests;
  for (const int64_t warmup_steps : {0, 1}) {
    auto trainer = tiny_trainer({.gradient_slots = 4}, testing::kStill);
    trainer->use_critic({.warmup_steps = warmup_steps});
    TrainBatch batch = make_batch(trajectories);
    set_returns(batch);
    (void)trainer->policy_step(batch, 0, {});
    digests.push_back(trainer->critic()->digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

struct Saved {
  TemporaryDirectory dir;
  std::unique_ptr<PolicyTrainer> trainer = tiny_trainer({}, {.lr = 1e-2});
  CheckpointFolder folder{dir.path(), {}, 3};

  void step(PolicyTrainer& of, int64_t version) const {
    TrainBatch batch = make_batch(trajectories);
    set_returns(batch);
    (void)of.policy_step(batch, version, {});
  }
  std::filesystem::path save(int64_t step) {
    return folder
        .save({.step = step, .version = step, .digest = "d"}, testing::tiny_model(),
              trainer->parameters(), trainer->optimizer(), trainer->critic())
        .value();
  }
  std::optional<ProvedCheckpoint> load(PolicyTrainer& to) {
    auto found =
        folder.load_latest(testing::tiny_model(), to.parameters(), to.optimizer(), to.critic());
    to.weights_changed();
    return found;
  }
  const std::vector<Trajectory> trajectories = recorded(4, 2);
};

TEST(Critic, ACheckpointHasIt) {
  Saved saved;
  saved.trainer->use_critic({});
  saved.step(*saved.trainer, 0);
  saved.save(1);
  auto resumed = tiny_trainer({}, {.lr = 1e-2}, {}, /*seed=*/9);
  resumed->use_critic({});
  ASSERT_TRUE(saved.load(*resumed));
  EXPECT_EQ(resumed->critic()->digest(), saved.trainer->critic()->digest());
  saved.step(*saved.trainer, 1);
  saved.step(*resumed, 1);
  EXPECT_EQ(resumed->critic()->digest(), saved.trainer->critic()->digest());
  EXPECT_EQ(testing::copy(resumed->parameters().flat()),
            testing::copy(saved.trainer->parameters().flat()));
}

TEST(Critic, ACheckpointWithoutOneIsRefusedByWhoWantsIt) {
  Saved saved;
  saved.step(*saved.trainer, 0);
  saved.save(1);
  auto resumed = tiny_trainer({});
  resumed->use_critic({});
  try {
    (void)saved.load(*resumed);
    FAIL() << "there is no critic in it";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("the run was begun without a critic"),
              std::string::npos)
        << error.what();
  }
}

TEST(Critic, ACheckpointWhoseHeadIsDamagedIsPassedOver) {
  Saved saved;
  saved.trainer->use_critic({});
  saved.step(*saved.trainer, 0);
  saved.save(1);
  const Digest first = saved.trainer->critic()->digest();
  saved.step(*saved.trainer, 1);
  const std::filesystem::path file = saved.save(2) / "critic.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-3, std::ios::end);
  stream.put('\x5a');
  stream.close();
  auto resumed = tiny_trainer({});
  resumed->use_critic({});
  const auto found = saved.load(*resumed);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.step, 1);
  EXPECT_EQ(resumed->critic()->digest(), first);
}

}  // namespace
}  // namespace tailrace
